"""What members gossip by: each its participant, its model, and how its messages are packed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace

from testbed.protocol import Job, NodeConfiguration
from testbed.simulation.member_training import MOST_ELEMENTS, real_learners, small_learner
from testbed.simulation.members import DeclaredCompute
from testbed.sync import flat
from testbed.sync.codecs import PLAIN, by_name
from testbed.sync.gossip.effects import Participant
from testbed.sync.gossip.message_codec import MessageCodec, WireMessage
from testbed.worker.gossip import participant_of
from testbed.worker.learner import Learner
from testbed.worker.steps import PacedSteps
from testbed.workload import Workload

#: Says seconds.
Clock = Callable[[], float]


@dataclass(frozen=True, slots=True)
class Gossips:
    """What a member gossips by: its `participant`, its place, the steps of its model, how long each is declared to
    take, and how its messages are packed. A model in place of a `larger` one counts that many times as many bytes, and
    learns nothing."""

    participant: Participant
    place: NodeConfiguration
    model: Learner
    steps: PacedSteps
    compute: DeclaredCompute
    codec: MessageCodec
    patience_s: float
    larger: float | None

    @classmethod
    def of(cls, name: str, jobs: Mapping[str, Job], model: Learner, larger: float | None, clock: Clock) -> Gossips:
        """What the member of a name gossips by, as its job has it."""
        job, members = jobs[name], tuple(jobs)
        work, place = Workload.from_json(job.workload), NodeConfiguration.from_json(job.assignment)
        # What steps take is the simulation's matter.
        steps = PacedSteps(model, replace(work, step_seconds=0.0), place)
        participant = participant_of(name, members, job, model, clock)
        codec = MessageCodec(members, len(participant.model), by_name(place.rules.get("codec", PLAIN.name)))
        return cls(participant, place, model, steps, DeclaredCompute(work), codec, job.round_timeout_s, larger)

    def bytes_of(self, packed: WireMessage) -> float:
        """Of a message."""
        return len(packed.body) * (self.larger or 1.0 if packed.large else 1.0)

    def end(self) -> tuple[str, dict[str, float]]:
        """At its program's end: SHA-256 of the parameters, what they come to over the test set."""
        if self.larger is not None:
            return "", {}
        flat.scatter(self.participant.model, self.model.parameters)
        return self.model.digest(), self.model.evaluate()


@contextmanager
def gossips_of(jobs: Mapping[str, Job], elements: int, gradients: bool, clock: Clock) -> Iterator[dict[str, Gossips]]:
    """Those of the members of these jobs, with a model of so many elements. EmulationError when the digits cannot be
    made, ValueError when a data set is missing."""
    works = {name: Workload.from_json(job.workload) for name, job in jobs.items()}
    if gradients:
        with real_learners() as make:
            yield {name: Gossips.of(name, jobs, make(work), None, clock) for name, work in works.items()}
        return
    larger = elements / min(elements, MOST_ELEMENTS)
    yield {name: Gossips.of(name, jobs, small_learner(work, elements), larger, clock) for name, work in works.items()}
