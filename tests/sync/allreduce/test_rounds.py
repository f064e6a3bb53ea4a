"""The measurements that a round leaves for later ones."""

from __future__ import annotations

import pytest
import torch

from testbed.plan import Plan
from testbed.sync.allreduce.chunk import Part
from testbed.sync.allreduce.chunk_codec import ChunkHeaderFormat
from testbed.sync.allreduce.held_plans import HeldPlans
from testbed.sync.allreduce.round import Round
from testbed.sync.allreduce.rounds import Rounds
from testbed.sync.transport import Outbox
from testbed.sync.transport.handshake import TransportSettings
from tests.sync.plans import names, star

pytestmark = pytest.mark.pure

MEMBERS = names(2)
CHUNK_BYTES = 1024
LARGE, SMALL = 16 * CHUNK_BYTES // 4, 1


@pytest.fixture
def rounds() -> Rounds:
    """Return the rounds of a leaf without connections."""
    plans = HeldPlans("m1", Plan(0, MEMBERS, (star(MEMBERS, "m0"),), CHUNK_BYTES))
    headers = ChunkHeaderFormat(len(MEMBERS))
    outbox = Outbox(TransportSettings("m1", "secret", 1.0), headers.size, {}, lambda peer, reason: None)
    return Rounds(plans, outbox, headers, 0, in_order=False, on_step=lambda: None)


def measured(rounds: Rounds, elements: int, back_s: float, long_s: float) -> Round:
    """Run a round of `long_s`, in which means take `back_s` to come back."""
    its = rounds.begin(0, torch.zeros(elements))
    last = len(its.reduction.layout.chunks) - 1
    for number in range(last + 1):
        left_s = (long_s - back_s) * number / last if last else 0.0
        its.pacing.hold("m0", number, Part(1, 1.0, 0))
        its.pacing.release("m0", lambda: False, left_s)
        its.pacing.finalize(number, left_s + back_s)
    rounds.end(its)
    return its


def test_how_late_means_come_back_is_learned_of_each_kind_of_round_by_itself(rounds: Rounds) -> None:
    """A small tensor's mean takes all of its round to come back; a large tensor's first mean does not."""
    measured(rounds, LARGE, back_s=0.1, long_s=1.0)
    measured(rounds, SMALL, back_s=0.1, long_s=0.1)
    large = rounds.begin(0, torch.zeros(LARGE))
    assert large.pacing.return_part == pytest.approx(0.1)
    rounds.end(large)
    assert rounds.begin(0, torch.zeros(SMALL)).pacing.return_part == pytest.approx(1.0)
