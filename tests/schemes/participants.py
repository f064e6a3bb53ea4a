"""Participants of gossip schemes, built as workers build them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from testbed.protocol import NodeConfiguration
from testbed.schemes import SCHEMES
from testbed.schemes.training import GossipTraining
from testbed.sync.gossip.effects import Participant


def participant(
    scheme: str,
    name: str,
    members: Sequence[str],
    place: NodeConfiguration,
    parameters: Tensor,
    iterations: int,
    samples: Sequence[float] = (),
    clock: Callable[[], float] = time.monotonic,
    **options: Any,
) -> Participant:
    """Build the scheme's participant for the member `name`, with its configuration `place`."""
    its = SCHEMES[scheme]
    training = GossipTraining(name, members, place, parameters, iterations, seed=1, samples=samples, clock=clock)
    built: Participant = its.algorithm.build(its.read(options), training)
    return built
