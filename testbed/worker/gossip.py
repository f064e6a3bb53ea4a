"""Training that gossips: a local step wherever the participant asks for one, from the parameters that it names."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import torch

from testbed.protocol import Goodbye, Job, NodeConfiguration
from testbed.schemes import Scheme, named
from testbed.schemes.training import GossipTraining
from testbed.sync import flat
from testbed.sync.codecs import PLAIN, by_name
from testbed.sync.gossip.effects import Participant
from testbed.sync.gossip.membership import Membership
from testbed.sync.rendezvous import Rendezvous
from testbed.worker.device import chosen_device
from testbed.worker.learner import Learner, make
from testbed.worker.steps import PacedSteps, gathered
from testbed.workload import Workload


def train(meeting: Rendezvous, scheme: Scheme, folder: Path) -> None:
    """Do the job to its end. SyncError when the member can't go on, Stopped when the controller said so, ValueError
    when the job asks for what does not exist."""
    torch.set_num_threads(1)
    try:
        work = Workload.from_json(meeting.job.workload)
        model = make(work, folder, chosen_device(work.device))
        place = NodeConfiguration.from_json(meeting.job.assignment)
        steps = PacedSteps(model, work, place)
        participant = participant_of(meeting.name, tuple(meeting.welcome.roster), meeting.job, model)
    except ValueError as error:
        meeting.channel.send(Goodbye.with_error(meeting.name, 0, str(error)))
        raise
    codec = by_name(place.rules.get("codec", PLAIN.name))
    with Membership(meeting, participant, steps.figures, codec, scheme.survives) as membership:
        flat.scatter(membership.train(steps), model.parameters)
        membership.finish(model.digest(), model.evaluate())


def participant_of(
    name: str, members: tuple[str, ...], job: Job, model: Learner, clock: Callable[[], float] = time.monotonic
) -> Participant:
    """What gossips for one of the `members` as its job has it, and reads seconds from the `clock`."""
    place, scheme = NodeConfiguration.from_json(job.assignment), named(job.scheme)
    training = GossipTraining(name, members, place, gathered(model), job.rounds, job.seed, model.samples, clock)
    participant: Participant = scheme.algorithm.build(scheme.read(job.options), training)
    return participant
