from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from testbed.emulation.network.routing import Routes
from testbed.planning import make_policy, policy_names
from testbed.run import view
from testbed.spec.topology import Topology
from tests.spec.files import TOPOLOGY

pytestmark = pytest.mark.pure

NETWORK = Topology.from_value(TOPOLOGY, Path("three.yaml"))
STATES = view.declared_states(NETWORK)


def test_a_route_goes_up_one_access_link_and_down_another() -> None:
    routes = view.member_routes(NETWORK, Routes.over(NETWORK))
    assert routes["tokyo-w0", "dallas-w0"] == (
        "tokyo-w0->tokyo",
        "tokyo->paris",
        "paris->dallas",
        "dallas->dallas-w0",
    )
    assert routes["paris-w0", "paris-w1"] == ("paris-w0->paris", "paris->paris-w1")
    assert len(routes) == 4 * 3


def test_links_are_those_in_force_and_the_workers_own() -> None:
    states = STATES | {"paris->tokyo": replace(STATES["paris->tokyo"], rate_bps=1e6, up=False)}
    links = view.physical_links(NETWORK, states)
    assert len(links) == 4 + 2 * 4
    assert (links["paris->tokyo"].rate_bps, links["paris->tokyo"].up) == (1e6, False)
    assert links["tokyo->paris"].delay_s == 0.110
    assert (links["tokyo-w0->tokyo"].rate_bps, links["tokyo-w0->tokyo"].delay_s) == (1e9, 1e-4)


def test_members_that_no_route_joins_have_none() -> None:
    routes = view.member_routes(NETWORK, Routes.over(NETWORK, {"paris->tokyo"}))
    assert ("dallas-w0", "tokyo-w0") not in routes
    assert ("tokyo-w0", "dallas-w0") in routes


@pytest.mark.parametrize("policy", policy_names())
def test_every_policy_plans_on_the_emulated_network(policy: str) -> None:
    known = view.view_of(NETWORK, Routes.over(NETWORK), STATES, 1_000_000, 0.0, "declared")
    plan = make_policy(policy).plan(known)
    assert plan.trees
