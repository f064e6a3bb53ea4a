"""What hybrid synchronization is told of an experiment: local steps by speed, and the cpn policy's figures. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from testbed.spec.experiment import ExperimentFile
from testbed.spec.topology import Worker

#: The policy that plans with computing power, and makes groups itself.
CPN = "cpn"


def steps_of(workers: Sequence[Worker], every: int) -> tuple[int, ...]:
    """Each worker's local steps to a round: `every` at the fastest, the others in proportion, so that all are done at
    about the same time; at least one."""
    fastest = max(worker.speed for worker in workers)
    return tuple(max(1, round(every * worker.speed / fastest)) for worker in workers)


def options_of(spec: ExperimentFile) -> dict[str, Any]:
    """The policy's options: the cpn policy knows the experiment's steps unless it is told others, and that the rounds
    of a session have one period for all groups."""
    own = dict(spec.sync.options)
    if spec.sync.policy != CPN:
        return own
    known: dict[str, Any] = {"every": spec.sync.every, "temporal": False, "overlap": spec.sync.overlap}
    if spec.compute.step_time:
        known["step_s"] = spec.compute.step_time
    return known | own


def period_of(spec: ExperimentFile) -> int:
    """Every how many rounds all synchronize, where the experiment says so and not the policy."""
    grouped = spec.sync.strategy in ("hierarchical", "hybrid")
    return spec.sync.period if grouped and spec.sync.policy != CPN else 1
