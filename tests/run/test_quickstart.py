"""What the quickstart's network is for: a drop that hurts the first plan, and that a better one goes around."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import replace
from pathlib import Path

import pytest

from testbed.emulation.network.routing import Routes
from testbed.link import link_name
from testbed.plan import Plan
from testbed.planning import View, make_policy, simulate
from testbed.run.view import view_of
from testbed.spec.experiment import Experiment
from testbed.spec.topology import Topology

pytestmark = pytest.mark.pure

EXPERIMENT = Experiment.load(Path(__file__).parents[2] / "experiments" / "quickstart.yaml")
NETWORK = EXPERIMENT.topology
POLICY = make_policy(EXPERIMENT.spec.sync.policy)

#: Both ways between Toronto and Tokyo, which an event takes down.
CUT = frozenset({"toronto->tokyo", "tokyo->toronto"})

BEFORE_S, DROP_S, RECOVERED_S, CUT_S = 20.0, 45.0, 65.0, 75.0


def seen(at_s: float, down: Set[str] = frozenset(), network: Topology = NETWORK) -> View:
    """The network as it truly is so long after training began."""
    states = {name: replace(link.at(at_s), up=name not in down) for name, link in network.links.items()}
    bytes_ = EXPERIMENT.spec.train.model_bytes
    return view_of(network, Routes.over(network, down), states, bytes_, at_s, "oracle")


def round_s(plan: Plan, view: View) -> float:
    return simulate(plan, view).seconds


#: Several plans are about as quick at first, since tokyo->toronto bounds them all. One over washington->london is held.
FIRST = POLICY.plan(seen(0))


def test_every_link_is_the_route_between_its_ends() -> None:
    routes = Routes.over(NETWORK)
    for link in NETWORK.links.values():
        assert routes.links(link.source, link.target) == (link.name,)


def test_the_new_uplink_is_tokyo_s_way_to_washington() -> None:
    (network,) = EXPERIMENT.networks.values()
    routes = Routes.over(network)
    for ends in (("tokyo", "washington"), ("washington", "tokyo")):
        assert link_name(*ends) not in NETWORK.links
        assert routes.links(*ends) == (link_name(*ends),)


def test_rounds_in_the_drop_are_at_least_half_as_long_again_under_the_first_plan_as_under_the_best() -> None:
    view = seen(DROP_S)
    best_s = round_s(POLICY.replan(view, FIRST), view)
    assert round_s(FIRST, view) >= 1.5 * best_s
    assert best_s <= 1.1 * round_s(FIRST, seen(BEFORE_S))


def test_the_first_plan_is_as_good_as_before_once_the_drop_is_over() -> None:
    assert round_s(FIRST, seen(RECOVERED_S)) == pytest.approx(round_s(FIRST, seen(BEFORE_S)), rel=0.1)


def test_tokyo_is_reached_by_way_of_london_while_its_link_to_toronto_is_down() -> None:
    routes = Routes.over(NETWORK, CUT)
    assert routes.path("toronto", "tokyo") == ("toronto", "london", "tokyo")
    assert routes.path("tokyo", "toronto") == ("tokyo", "london", "toronto")
    view = seen(CUT_S, CUT)
    assert round_s(POLICY.replan(view, FIRST), view) < round_s(FIRST, view)
