"""Shrinks a case that breaks a rule: makes it smaller, step by step, as long as the same rule is broken."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from testbed.run.assignments import check_policy
from testbed.run.errors import CannotRun
from testbed.run.jobs import Jobs
from testbed.spec.errors import SpecError
from testbed.spec.experiment import Experiment
from tests.chaos.case import Case
from tests.chaos.faults import ExhaustMemory, ExhaustPids, KillEngine

#: Executions of a smaller case before it counts as correct: a fault strikes at another instant each time.
TRIES = 2
PLAIN_SYNC = {"strategy": "gradients", "policy": "mst"}
FEWEST_ROUNDS = 3


def shrink(case: Case, fails: Callable[[Case], bool]) -> Case:
    """Return a case that fails, while each valid case that is one step smaller has passed TRIES times.

    A step is repeated while the smaller case fails. All steps are taken again until none finds a smaller case that
    fails. No case is tried twice.
    """
    passed: set[str] = set()

    def first_failing(candidates: Iterator[Case]) -> Case | None:
        for candidate in candidates:
            if repr(candidate) in passed or not is_valid(candidate):
                continue
            if any(fails(candidate) for _ in range(TRIES)):
                return candidate
            passed.add(repr(candidate))
        return None

    before = None
    while before != case:
        before = case
        for step in STEPS:
            while (found := first_failing(step(case))) is not None:
                case = found
    return case


def is_valid(case: Case) -> bool:
    """Return whether the case's experiment can run: a refused one would break rules of its own."""
    with tempfile.TemporaryDirectory(prefix="chaos-shrink") as folder:
        try:
            experiment = Experiment.load(case.write(Path(folder)))
            check_policy(experiment)
            Jobs(experiment)
        except (SpecError, CannotRun):
            return False
    return True


def _experiment(case: Case, **fields: Any) -> Case:
    return replace(case, experiment={**case.experiment, **fields})


def fewer_faults(case: Case) -> Iterator[Case]:
    """Yield the case without each of its faults."""
    for i in range(len(case.faults)):
        yield replace(case, faults=case.faults[:i] + case.faults[i + 1 :])


def processes(case: Case) -> Iterator[Case]:
    """Yield the case with processes for containers, unless a fault needs containers."""
    if case.containers and not any(map(case.has, (ExhaustMemory, ExhaustPids, KillEngine))):
        yield replace(case, containers=False)


def fewer_events(case: Case) -> Iterator[Case]:
    """Yield the case without events, then without each of them."""
    events = case.experiment["events"]
    if len(events) > 1:
        yield _experiment(case, events=[])
    for i in range(len(events)):
        yield _experiment(case, events=events[:i] + events[i + 1 :])


def fewer_members(case: Case) -> Iterator[Case]:
    """Yield the case without one site, or with one worker a site. The targets of faults stay."""
    sites, links, events = case.topology["sites"], case.topology["links"], case.experiment["events"]
    targets = {fault.target for fault in case.faults}
    for gone in sites if len(sites) > 2 else ():
        if not any(target.startswith(f"{gone}-w") for target in targets):
            topology = {
                **case.topology,
                "sites": {name: its for name, its in sites.items() if name != gone},
                "links": [link for link in links if gone not in link["between"]],
            }
            yield replace(
                _experiment(case, events=[each for each in events if not _names(each, gone)]), topology=topology
            )
    for name, its in sites.items():
        if its["workers"] > 1 and f"{name}-w{its['workers'] - 1}" not in targets:
            fewer = {**sites, name: {**its, "workers": its["workers"] - 1}}
            yield replace(case, topology={**case.topology, "sites": fewer})


def _names(event: dict[str, Any], site: str) -> bool:
    ends = event.get("down") or event.get("up") or event["change"]["link"].split("->")
    return site in ends


def plain_settings(case: Case) -> Iterator[Case]:
    """Yield the case with gradients on a tree, on a tree, not elastic, and without a trace."""
    sync = case.experiment["sync"]
    timeout = {"round_timeout": sync["round_timeout"]} if "round_timeout" in sync else {}
    for plain in (PLAIN_SYNC | timeout, *([{**sync, "policy": "mst"}] if "policy" in sync else [])):
        if {"strategy": "gradients", **sync} != {"strategy": "gradients", **plain}:
            yield _experiment(case, sync=plain)
    if case.elastic:
        yield replace(case, experiment={name: its for name, its in case.experiment.items() if name != "elastic"})
    links = [{name: its for name, its in link.items() if name != "trace"} for link in case.topology["links"]]
    if links != case.topology["links"]:
        yield replace(case, topology={**case.topology, "links": links})


def fewer_rounds(case: Case) -> Iterator[Case]:
    """Yield the case with half and three quarters of its rounds, if its faults and events come before the last."""
    last = max(
        [fault.at.round for fault in case.faults] + [event["round"] for event in case.experiment["events"]] + [0]
    )
    for rounds in (case.rounds // 2, case.rounds * 3 // 4):
        if max(FEWEST_ROUNDS, last + 1) <= rounds < case.rounds:
            yield _experiment(case, train={**case.experiment["train"], "rounds": rounds})


#: The steps in the order in which they are tried: those that save the most time come first.
STEPS = (processes, fewer_faults, fewer_events, fewer_members, plain_settings, fewer_rounds)
