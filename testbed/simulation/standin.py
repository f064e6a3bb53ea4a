"""Members that learn nothing: what rounds they ask for, and when, is found out from a small model in their place.

Members of one assignment do the same, so one of them stands in for all.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import replace

from testbed.plan import Plan
from testbed.protocol import Job
from testbed.simulation.learners import MOST_ELEMENTS, small_learner
from testbed.simulation.members import Activity, CompletedRound, EndStep, Operation
from testbed.simulation.round_model import Payload, coded_payload
from testbed.simulation.training_thread import TrainingThread
from testbed.workload import Workload


class StandIns:
    """A member for all of its assignment, of which each mean is what it gave itself."""

    def __init__(self, jobs: Mapping[str, Job], elements: int, plan: Callable[[], Plan]) -> None:
        self._larger = elements / min(elements, MOST_ELEMENTS)
        self._for: dict[str, str] = {}
        self._members: dict[str, TrainingThread] = {}
        for name, job in jobs.items():
            kind = json.dumps(job.assignment, default=list)
            if kind not in self._members:
                model = small_learner(Workload.from_json(job.workload), elements)
                self._members[kind] = TrainingThread(name, job, plan, model)
            self._for[name] = kind

    def next_activities(self) -> dict[str, Activity]:
        activities = {kind: _silent(member.activity()) for kind, member in self._members.items()}
        return {name: activities[kind] for name, kind in self._for.items()}

    def reduce(self, number: int, plan: Plan) -> Payload:
        given = next(iter(self._members.values())).given
        elements = max(round(given.values.numel() * self._larger), 1)
        return Payload(4 * elements) if given.residual is None else coded_payload(plan, number, elements)

    def resume(self, mean: CompletedRound) -> None:
        for member in self._members.values():
            member.resume(mean)

    def digest(self, member: str) -> str:
        return ""

    def close(self) -> None:
        """Nobody is needed any more."""
        for member in self._members.values():
            member.close()


def _silent(activity: Activity) -> Activity:
    """The same without what a member would have to say of its model."""
    deeds: tuple[Operation, ...] = tuple(
        EndStep({}) if isinstance(deed, EndStep) else deed for deed in activity.operations
    )
    return replace(activity, operations=deeds)


@contextmanager
def standing_in(jobs: Mapping[str, Job], elements: int, plan: Callable[[], Plan]) -> Iterator[StandIns]:
    """Those for the members of these jobs, while inside."""
    with closing(StandIns(jobs, elements, plan)) as learning:
        yield learning
