"""A part of the campaign of plan swaps; the whole is `python -m tests.sync.swaps`."""

from __future__ import annotations

import random

import pytest

from tests.sync import swaps
from tests.sync.plans import plan_over_graph

pytestmark = pytest.mark.local


@pytest.mark.parametrize("transport", swaps.TRANSPORTS)
def test_swaps_among_random_graphs_lose_and_double_nothing(transport: str) -> None:
    assert swaps.campaign(transport, "whole", 40, seed=1000).rounds >= 40


@pytest.mark.parametrize("transport", swaps.TRANSPORTS)
def test_swaps_between_rounds_among_all_lose_and_double_nothing(transport: str) -> None:
    found = swaps.campaign(transport, "grouped", 40, seed=2000)
    # How many are in force before the next round among all, the machine says: 8 on a busy one. Which are, and from
    # what round, is for test_early_swaps.
    assert found.rounds >= 40 and found.early >= 1


def test_the_checker_notices_what_is_lost_doubled_or_late() -> None:
    first = plan_over_graph(random.Random(1), ("m0", "m1"), 0)
    for number, wrong in ((1, "m0"), (2, "m1")):
        checker = swaps.RoundChecker(first, False)
        both = checker.contribution("m0", 1) + checker.contribution("m1", 1)
        checker.note("m0", number, 0, (both + (checker.contribution(wrong, 1) if number == 1 else 0)) / 2, 0, 0)
        with pytest.raises(AssertionError):
            checker.check(0)
