"""The epochs that a member accepts from its peers, and sums that have no mean."""

from __future__ import annotations

import socket

import pytest
import torch

from testbed.plan import Plan
from testbed.sync.allreduce.chunk_codec import ChunkHeader, ChunkHeaderFormat, Kind
from testbed.sync.allreduce.group import AllReduceGroup
from testbed.sync.errors import FrameError, SyncError
from testbed.sync.transport.frame import Frame, Greeting
from testbed.sync.transport.handshake import TransportSettings
from testbed.sync.transport.listener import Received
from tests.sync.keys import keys
from tests.sync.plans import names, star

pytestmark = pytest.mark.local

MEMBERS = names(2)
ELEMENTS = 16


def test_a_root_can_t_lead_the_others_to_an_epoch_that_the_controller_has_not_told_of() -> None:
    plan, headers = Plan(3, MEMBERS, (star(MEMBERS, "m0"),)), ChunkHeaderFormat(len(MEMBERS))
    settings = TransportSettings("m1", keys("m1", MEMBERS), 60.0, generation=plan.epoch)
    payload = memoryview(bytes(4 * ELEMENTS))
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        group = AllReduceGroup(plan, settings, dict.fromkeys(MEMBERS, nobody.getsockname()))
        group.begin(torch.zeros(ELEMENTS), 1.0)
        receiver = group.receiver(Greeting("m0", generation=plan.epoch))

        def mean(successor: int) -> Received:
            header = ChunkHeader(Kind.MEAN, 1, 0, 3, successor, 1, ELEMENTS, 0, 2.0, 0b11)
            return Received("m0", Frame(headers.pack(header), len(payload)), payload, len(payload), 0.0)

        with pytest.raises(FrameError) as caught:
            receiver.take(mean(2**31))
        assert (caught.value.rule, caught.value.member, caught.value.epoch) == ("unknown-epoch", "m0", 2**31)
        receiver.take(mean(3))
        group.close()


def test_weights_that_add_up_to_zero_are_the_error_of_the_round_and_not_of_a_peer() -> None:
    plan, headers = Plan(3, MEMBERS, (star(MEMBERS, "m0"),)), ChunkHeaderFormat(len(MEMBERS))
    settings = TransportSettings("m0", keys("m0", MEMBERS), 60.0, generation=plan.epoch)
    payload = memoryview(bytes(4 * ELEMENTS))
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        group = AllReduceGroup(plan, settings, dict.fromkeys(MEMBERS, nobody.getsockname()))
        await_end = group.begin(torch.zeros(ELEMENTS), 0.0)
        header = ChunkHeader(Kind.PARTIAL, 1, 0, 3, 3, 1, ELEMENTS, 0, 0.0, 0b10, scale=0.0)
        frame = Frame(headers.pack(header), len(payload))
        group.receiver(Greeting("m1", generation=plan.epoch)).take(Received("m1", frame, payload, len(payload), 0.0))
        with pytest.raises(SyncError) as caught:
            await_end()
        group.close()
    assert (caught.value.rule, caught.value.member) == ("no-weight", None)
    assert (caught.value.round, caught.value.epoch) == (1, 3)
