"""The benchmark of auxiliary routes: which link falls, and by which request."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.auxiliary import LEFT, Throttled, at_rate, held, throttled, worst_link
from testbed.plan import Plan
from testbed.planning import simulate
from testbed.planning.policies.star import star
from tests.planning.networks import sites, view_of

pytestmark = pytest.mark.pure


def test_a_change_is_of_the_rate_alone() -> None:
    change = at_rate("a->b", 620_972.46)
    assert (change.link, change.rate, change.delay) == ("a->b", 620_972.0, None)


def test_the_worst_link_is_the_one_that_rounds_wait_for() -> None:
    view = view_of(sites(("a", "b", 10), ("b", "c", 40)), {}, model_bytes=1_000_000)
    plan = Plan(0, view.names, (star(view.names, "b-w0"),))
    link = worst_link(plan, view)
    assert link in ("a->b", "b->a")
    slow = throttled(view, link)
    assert slow.links[link].rate_bps == LEFT * view.links[link].rate_bps
    assert simulate(plan, slow).seconds > 5 * simulate(plan, view).seconds


def test_both_claims_are_held_or_missed() -> None:
    found = Throttled(1, "a->b", 1.0, 10.0, 1.0, 20.0, 0.0, 0.2, 1.0, 1.0)
    assert held([found])
    assert not held([replace(found, after_s=19.0)])
    assert not held([found, replace(found, seed=2, part_after=0.01)])
