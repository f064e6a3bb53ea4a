"""Each rule finds what is wrong in a history made for it, and nothing in a correct one."""

from __future__ import annotations

import base64
import zlib
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from tests.chaos.case import Case
from tests.chaos.checker import RULES, check
from tests.chaos.faults import Kill, Moment, RunBeside
from tests.chaos.history import Contribution, Execution, History, Injection, Result
from tests.chaos.member import SAMPLED, encoded, recorded_slices, stride_of

pytestmark = pytest.mark.pure

CASE = Case.plain(1)
WEIGHT = 16.0
ELEMENTS = 30


def contribution(member: str, number: int) -> Contribution:
    """Return a member's contribution, with the values that member.py writes."""
    unit = 8 ** CASE.members.index(member)
    return Contribution(WEIGHT, ((np.arange(ELEMENTS) + number) % 7 + 1).astype(np.float32) * unit)


def result(number: int) -> Result:
    """Return the mean of all members' contributions."""
    total = sum(contribution(member, number).values * np.float32(WEIGHT) for member in CASE.members)
    weight = WEIGHT * len(CASE.members)
    return Result(True, ((0, ELEMENTS, CASE.members, weight),), np.float32(total / np.float32(weight)))


def history(**changes: Any) -> History:
    """Return the history of a run that went well, with changed fields."""
    each = [(number, member) for number in range(1, CASE.rounds + 1) for member in CASE.members]
    execution = Execution(0, "verdict: trusted", Path(), 0.0, (), (), ())
    summary = {"training": {"rounds": CASE.rounds, "identical_parameters": True}}
    made = History(
        CASE,
        execution,
        summary,
        (),
        {},
        {(number, member): [contribution(member, number)] for number, member in each},
        {(number, member): [result(number)] for number, member in each},
    )
    return replace(made, **changes)


def executed(**changes: Any) -> History:
    """Return a history with changed fields of its execution."""
    return history(execution=replace(history().execution, **changes))


def with_result(changed: Result) -> History:
    """Return a history in which the first member got another result of the third round."""
    made = history()
    return replace(made, results={**made.results, (3, CASE.members[0]): [changed]})


def ended(reason: str, *faults: Kill) -> History:
    """Return the history of a run that ended early."""
    execution = replace(history().execution, code=1, injections=tuple(Injection(fault, 0.0) for fault in faults))
    return history(execution=execution, summary={"training": {"rounds": None}}, reasons=(reason,) if reason else ())


def flipped() -> np.ndarray:
    values = result(3).values.copy()
    values.view(np.int32)[7] ^= 1
    return values


def without(member: str) -> Result:
    """Return a mean without `member` that claims to be of all members."""
    total = sum(contribution(each, 3).values * np.float32(WEIGHT) for each in CASE.members if each != member)
    return replace(result(3), values=np.float32(total / np.float32(WEIGHT * len(CASE.members))))


def test_nothing_is_found_where_nothing_is_wrong() -> None:
    assert check(history()) == {}
    assert check(ended("c-w0 ended with exit code -9", Kill(Moment(round=3), "c-w0"))) == {}


WRONG = {
    "ends": executed(code=None),
    "exit_code_fits": executed(code=1),
    "end_names_its_fault": ended("the machine is tired", Kill(Moment(round=3), "c-w0")),
    "rounds_are_all_there": history(
        results={key: its for key, its in history().results.items() if key[0] != CASE.rounds}
    ),
    "members_hold_the_same_bits": with_result(replace(result(3), values=flipped())),
    "slices_are_of_all_members": with_result(replace(result(3), slices=((5, ELEMENTS, CASE.members, 1.0),))),
    "means_are_right": with_result(without(CASE.members[1])),
    "parameters_are_identical": history(summary={"training": {"rounds": 30, "identical_parameters": False}}),
    "no_traceback": history(logs={"a.log": "Traceback (most recent call last):\n  File\nKeyError: 1"}),
    "nothing_is_left": executed(left=("a container",)),
    "nothing_foreign_is_touched": executed(touched=("the interface",)),
    "what_is_beside_goes_well": executed(injections=(Injection(RunBeside(Moment(round=3)), 0.0, wrong="it failed"),)),
}


@pytest.mark.parametrize("elements", [1, SAMPLED, 3 * SAMPLED - 1])
def test_the_recorded_elements_of_a_long_tensor_lie_in_the_slices_that_they_are_of(elements: int) -> None:
    tensor = torch.arange(elements, dtype=torch.float32)
    stride, cuts = stride_of(tensor), sorted({0, elements // 3, elements // 3 + 1, elements})
    parts = [SimpleNamespace(start=a, stop=b, members=("a",), weight=1.0) for a, b in pairwise(cuts)]
    kept = np.frombuffer(zlib.decompress(base64.b64decode(encoded(tensor))), np.float32)
    slices = recorded_slices(parts, stride)
    assert 0 < len(kept) <= SAMPLED and [0, *(stop for _, stop, *_ in slices)][-1] == len(kept)
    for start, stop, *_ in slices:
        (part,) = {next(part.start for part in parts if part.start <= at < part.stop) for at in kept[start:stop]}
        assert part in cuts


def test_a_contribution_that_was_given_twice_is_tried_once() -> None:
    made = history()
    twice = {key: its * 8 for key, its in made.contributions.items()}
    assert check(replace(made, contributions=twice)) == {}


def test_each_rule_has_something_wrong_here() -> None:
    assert {rule.__name__ for rule in RULES} == set(WRONG)


@pytest.mark.parametrize("rule", WRONG)
def test_a_rule_finds_what_is_wrong(rule: str) -> None:
    assert rule in check(WRONG[rule])


def test_an_end_without_a_reason_or_a_fault_is_found() -> None:
    assert "end_names_its_fault" in check(ended("", Kill(Moment(round=3), "c-w0")))
    assert "end_names_its_fault" in check(ended("c-w0 ended"))
