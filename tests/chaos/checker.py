"""The rules that a run must keep, each checked against the records and not against the run's own summary.

A rule is a function from a history to findings, a sentence each; a run that keeps all rules yields none.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from itertools import product

import numpy as np

from testbed.cli.console import CANNOT, FAILED
from tests.chaos.history import Contribution, History, Result
from tests.chaos.member import RECORD

#: The error of a sum of a few float32 values, relative to the largest: 2^-24 an addition, and as much for the division.
TOLERANCE = 1e-6
#: Whole numbers below this are exact in float32, and so is their sum.
EXACT = 2**24

Rule = Callable[[History], Iterator[str]]


def ends(history: History) -> Iterator[str]:
    """Find a run that does not end by itself."""
    if history.execution.code is None:
        yield "the run hung, and had to be killed"


def exit_code_fits(history: History) -> Iterator[str]:
    """Find an exit code that is not that of how the run ended."""
    code = history.execution.code
    asked = {code for fault in history.injected for code in fault.ends}
    if code is None or code in asked:
        return
    late = {code for fault in history.injected for code in fault.late_ends}
    if history.finished and code not in {0, *late}:
        yield f"the run came to its end, with exit code {code}"
    if not history.finished and code not in (FAILED, CANNOT):
        yield f"the run did not come to its end, with exit code {code}"


def end_names_its_fault(history: History) -> Iterator[str]:
    """Find an early end without a reason, or whose reason names no fault that was injected."""
    if history.finished or history.execution.code is None:
        return
    said = " ".join(history.reasons)
    if not history.reasons:
        yield "the run ended early, and gives no reason"
    elif not history.injected:
        yield f"the run ended early, though nothing was done to it: {history.reasons[0]:.300}"
    elif not any(
        re.search(reason.format(target=re.escape(fault.target)), said, re.IGNORECASE)
        for fault in history.injected
        for reason in (*fault.reasons, *(("cut off",) if history.execution.code == -9 else ()))
    ):
        done = ", ".join(map(str, history.injected))
        yield f"the run's reason names nothing that was done ({done}): {history.reasons[0]:.300}"


def rounds_are_all_there(history: History) -> Iterator[str]:
    """Find rounds that are missing in a run that came to its end."""
    if not history.finished or not history.case.reduces:
        return
    got = {number for number, _ in history.results}
    if missing := set(range(1, history.case.rounds + 1)) - got:
        yield f"the run came to its end without the rounds {sorted(missing)}"


def members_hold_the_same_bits(history: History) -> Iterator[str]:
    """Find members that hold different bits of a round's mean over the same members."""
    seen: dict[tuple[int, tuple[str, ...], int], tuple[str, bytes]] = {}
    for (number, member), results in sorted(history.results.items()):
        for result in results:
            for start, stop, members, _ in result.slices:
                bits = result.values[start:stop].tobytes()
                key = number, () if result.whole else members, start
                first, held = seen.setdefault(key, (member, bits))
                if held != bits:
                    yield f"{first} and {member} hold different bits of round {number}, from element {start}"


def slices_are_of_all_members(history: History) -> Iterator[str]:
    """Find slices that do not cover the tensor, or do not count the members of their plan and generation.

    Those are all members where nobody was lost, and always include the member that got the mean.
    """
    everyone = set(history.case.members)
    for (number, member), results in sorted(history.results.items()):
        for result in results:
            cuts = [0, *(stop for _, stop, _, _ in result.slices)]
            if [start for start, *_ in result.slices] != cuts[:-1] or cuts[-1] != len(result.values):
                yield f"{member}'s slices of round {number} do not cover the tensor: {cuts}"
            for start, _, members, _ in result.slices:
                if member not in members or not set(members) <= everyone:
                    yield f"round {number}, which {member} got, is of {members} from element {start}"
                if not history.case.elastic and result.whole and set(members) != everyone:
                    yield f"round {number} is of {members} from element {start}, though nobody may be lost"


def means_are_right(history: History) -> Iterator[str]:
    """Find slices that are not the mean of exactly their members' contributions; whole numbers are compared exactly."""
    for (number, member), results in sorted(history.results.items()):
        for result in results:
            yield from _wrong_slices(history, number, member, result)


def _wrong_slices(history: History, number: int, member: str, result: Result) -> Iterator[str]:
    for start, stop, members, weight in result.slices:
        given = [history.contributions.get((number, name), []) for name in members]
        if not all(given):
            missing = [name for name, its in zip(members, given, strict=True) if not its]
            yield f"round {number} at {member} counts {missing}, who put nothing into it"
            continue
        # A member that begins a round again, after a loss, mostly puts the same into it.
        given = [list({(one.weight, one.values.tobytes()): one for one in its}.values()) for its in given]
        got = result.values[start:stop]
        if not any(_is_mean(got, chosen, weight, slice(start, stop)) for chosen in product(*given)):
            yield f"round {number} at {member} is not the mean of {members} from element {start} to {stop}"


def _is_mean(got: np.ndarray, chosen: Sequence[Contribution], weight: float, part: slice) -> bool:
    products = [its.values[part].astype(np.float64) * its.weight for its in chosen]
    total = np.sum(products, axis=0)
    largest = np.sum(np.abs(products), axis=0)
    if abs(sum(its.weight for its in chosen) - weight) > TOLERANCE * weight:
        return False
    if all(np.array_equal(its, np.rint(its)) for its in products) and largest.max() < EXACT:
        return np.array_equal(got, total.astype(np.float32) / np.float32(weight))
    return bool(np.all(np.abs(got - total / weight) <= TOLERANCE * (len(chosen) + 1) * largest / weight))


def parameters_are_identical(history: History) -> Iterator[str]:
    """Find a finished run whose members hold different parameters."""
    if history.finished and history.summary["training"].get("identical_parameters") is False:
        yield "the run came to its end with members that hold different parameters"


def no_traceback(history: History) -> Iterator[str]:
    """Find tracebacks in the output and the logs."""
    texts = {"its output": history.execution.output, **history.logs}
    for where, text in texts.items():
        if (at := text.find("Traceback (most recent call last)")) >= 0:
            lines = text[at:].splitlines()
            last = next((line for line in lines[1:] if line and not line.startswith((" ", RECORD))), "")
            yield f"a traceback in {where}: {last:.200}"


def nothing_is_left(history: History) -> Iterator[str]:
    """Find things of the run that are left on the machine."""
    for what in history.execution.left:
        yield f"left on the machine: {what}"


def nothing_foreign_is_touched(history: History) -> Iterator[str]:
    """Find other people's things that changed."""
    for what in history.execution.touched:
        yield f"foreign, and not as it was: {what}"


def what_is_beside_goes_well(history: History) -> Iterator[str]:
    """Find a second run, started beside the run, that did not end well."""
    for injection in history.execution.injections:
        if injection.wrong:
            yield f"{injection.fault}: {injection.wrong}"


RULES: tuple[Rule, ...] = (
    ends,
    exit_code_fits,
    end_names_its_fault,
    rounds_are_all_there,
    members_hold_the_same_bits,
    slices_are_of_all_members,
    means_are_right,
    parameters_are_identical,
    no_traceback,
    nothing_is_left,
    nothing_foreign_is_touched,
    what_is_beside_goes_well,
)

#: The most findings of one rule: a rule may be broken in every round.
MOST_FINDINGS = 3


def check(history: History) -> dict[str, list[str]]:
    """Return the findings of each broken rule, by the rule's name."""
    found: dict[str, list[str]] = defaultdict(list)
    for rule in RULES:
        for finding in rule(history):
            if len(found[rule.__name__]) < MOST_FINDINGS:
                found[rule.__name__].append(finding)
    return dict(found)
