"""Decentralized training: members that send each other messages over a graph, each at its own pace.

    with gossip.join(participant, "paris", peers=peers, token=token) as membership:
        membership.train_model([*model.parameters()], step)

A participant is a program without a transport: it yields effects (`effects`), which a driver carries out over sockets
and in real time, and a simulation in simulated time. A public name is loaded at its first use, because schemes'
options are read without PyTorch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from testbed.lazy import lazy_names

if TYPE_CHECKING:
    from testbed.sync.gossip.effects import Advance as Advance
    from testbed.sync.gossip.effects import LocalCompute as LocalCompute
    from testbed.sync.gossip.effects import Participant as Participant
    from testbed.sync.gossip.effects import Send as Send
    from testbed.sync.gossip.effects import ServedMember as ServedMember
    from testbed.sync.gossip.effects import Step as Step
    from testbed.sync.gossip.effects import TrainingMember as TrainingMember
    from testbed.sync.gossip.effects import Until as Until
    from testbed.sync.gossip.iteration_reporter import StepFigures as StepFigures
    from testbed.sync.gossip.membership import Membership as Membership
    from testbed.sync.gossip.membership import join as join
    from testbed.sync.gossip.message import Message as Message
    from testbed.sync.gossip.neighbours import Neighbours as Neighbours
    from testbed.sync.gossip.neighbours import WeightedMean as WeightedMean

_MODULES = {
    "Advance": "testbed.sync.gossip.effects",
    "LocalCompute": "testbed.sync.gossip.effects",
    "Membership": "testbed.sync.gossip.membership",
    "Message": "testbed.sync.gossip.message",
    "Neighbours": "testbed.sync.gossip.neighbours",
    "Participant": "testbed.sync.gossip.effects",
    "Send": "testbed.sync.gossip.effects",
    "ServedMember": "testbed.sync.gossip.effects",
    "Step": "testbed.sync.gossip.effects",
    "StepFigures": "testbed.sync.gossip.iteration_reporter",
    "TrainingMember": "testbed.sync.gossip.effects",
    "Until": "testbed.sync.gossip.effects",
    "WeightedMean": "testbed.sync.gossip.neighbours",
    "join": "testbed.sync.gossip.membership",
}

__all__ = [*_MODULES]

__getattr__, __dir__ = lazy_names(__name__, _MODULES)
