"""Smaller cases are valid and really smaller, and the search ends at the smallest that still fails."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from tests.chaos.case import Case
from tests.chaos.faults import Kill, Moment
from tests.chaos.shrink import FEWEST_ROUNDS, STEPS, TRIES, is_valid, shrink

pytestmark = pytest.mark.pure

NUMBERS = range(40)
#: The plain cases name no scheme, since gradients are the default.
CASES = [*(Case.drawn(3, number) for number in NUMBERS), Case.plain(1), Case.plain(1, True, 3)]


def size(case: Case) -> int:
    """Return the length of what a case says, and more for containers and for a scheme that is not plain."""
    sync = case.experiment["sync"]
    plain = sync.get("strategy", "gradients") == "gradients" and sync.get("policy") == "mst"
    said = len(json.dumps([case.topology, case.experiment["events"], case.experiment.get("elastic")]))
    return said + 100 * (case.containers + len(case.faults)) + case.rounds + len(case.members) + 50 * (not plain)


@pytest.mark.parametrize("case", CASES, ids=range(len(CASES)))
def test_a_case_that_always_fails_is_shrunk_to_the_plainest(case: Case) -> None:
    smallest = shrink(case, lambda _: True)
    assert (smallest.faults, smallest.containers, smallest.elastic) == ((), False, False)
    assert len(smallest.members) == 2 and smallest.experiment["events"] == []
    assert smallest.rounds < 2 * FEWEST_ROUNDS and "trace" not in str(smallest.topology["links"])
    sync = smallest.experiment["sync"]
    assert (sync.get("strategy", "gradients"), sync["policy"]) == ("gradients", "mst")
    assert is_valid(smallest)


@pytest.mark.parametrize("case", CASES, ids=range(len(CASES)))
def test_each_step_yields_smaller_cases_and_keeps_targets_and_moments(case: Case) -> None:
    parts = {"", "owner", "controller", "core", "replay"}
    for candidate in (each for step in STEPS for each in step(case)):
        plainer = candidate.experiment["sync"] != case.experiment["sync"]
        assert candidate != case and (plainer or size(candidate) < size(case))
        assert {fault.target for fault in candidate.faults} <= {*candidate.members, *parts}
        assert all(fault.at.round < candidate.rounds for fault in candidate.faults)


def test_what_the_failure_needs_is_kept() -> None:
    needed = Kill(Moment(round=3), "b-w0")
    case = replace(Case.drawn(3, 4), faults=(Kill(Moment(round=9), "a-w0"), needed))
    smallest = shrink(case, lambda each: needed in each.faults and len(each.members) >= 3)
    assert smallest.faults == (needed,) and len(smallest.members) == 3
    assert shrink(case, lambda _: False) == case


def test_a_case_that_passes_is_executed_again_and_then_left() -> None:
    executed: Counter[str] = Counter()

    def passes(case: Case) -> bool:
        executed[repr(case)] += 1
        return False

    shrink(Case.drawn(3, 4), passes)
    assert set(executed.values()) == {TRIES}


@pytest.mark.parametrize("case", CASES, ids=range(len(CASES)))
def test_a_case_is_read_from_its_files(case: Case, tmp_path: Path) -> None:
    case.write(tmp_path)
    assert Case.read(tmp_path) == case
