"""A group that waits for the end of its round."""

from __future__ import annotations

import socket
import threading

import pytest
import torch

from testbed.plan import Group, Plan, Tree
from testbed.sync.allreduce.chunk_codec import ChunkHeader, ChunkHeaderFormat, Kind
from testbed.sync.allreduce.group import AllReduceGroup
from testbed.sync.allreduce.receiver import Loss
from testbed.sync.allreduce.sending import OutgoingFrames
from testbed.sync.errors import Halted, SyncError
from testbed.sync.transport.frame import Frame, Greeting
from testbed.sync.transport.handshake import TransportSettings
from testbed.sync.transport.listener import Received
from tests.sync.keys import keys
from tests.sync.plans import names, star
from tests.waiting import PATIENCE_S

pytestmark = pytest.mark.local

MEMBERS = names(2)


def test_a_round_can_be_aborted_while_its_silent_peer_is_reported() -> None:
    """A report takes the engine's lock, which an abort holds while it ends the round."""
    reported: list[Loss] = []

    def report(loss: Loss) -> None:
        reported.append(loss)
        aborting = threading.Thread(target=group.freeze, args=(Halted("m0 is gone"),), daemon=True)
        aborting.start()
        aborting.join(PATIENCE_S)
        assert not aborting.is_alive()

    plan = Plan(3, MEMBERS, (star(MEMBERS, "m0"),))
    settings = TransportSettings("m1", keys("m1", MEMBERS), PATIENCE_S, generation=plan.epoch)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        group = AllReduceGroup(plan, settings, dict.fromkeys(MEMBERS, silent.getsockname()), on_lost=report)
        group.suspect_s = 0.0
        await_end = group.begin(torch.zeros(16), 1.0)
        with pytest.raises(Halted):
            await_end()
        group.close()
    assert [(loss.peer, loss.broken) for loss in reported] == [("m0", False)]


def test_a_failure_ends_the_wait_for_the_means_of_the_round_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """m1 takes no frame. So m0, which reduces round 3 alone, waits at its end until round 2's mean has left."""
    waits = threading.Event()
    await_all_sent = OutgoingFrames.await_all_sent

    def waiting(self: OutgoingFrames, timeout_s: float) -> bool:
        waits.set()
        return await_all_sent(self, timeout_s)

    monkeypatch.setattr(OutgoingFrames, "await_all_sent", waiting)
    alone = tuple(Group((member,), (Tree(member, {}, {}),)) for member in MEMBERS)
    plan = Plan(3, MEMBERS, (star(MEMBERS, "m0"),), groups=alone, period=2)
    settings = TransportSettings("m0", keys("m0", MEMBERS), 2 * PATIENCE_S, generation=plan.epoch)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        group = AllReduceGroup(plan, settings, dict.fromkeys(MEMBERS, silent.getsockname()), after_round=1)
        await_end = group.begin(torch.zeros(16), 1.0)
        payload = memoryview(bytes(64))
        header = ChunkHeader(Kind.PARTIAL, 1, 0, 3, 3, 2, 16, 0, 1.0, 0b10)
        frame = Frame(ChunkHeaderFormat(len(MEMBERS)).pack(header), len(payload))
        group.receiver(Greeting("m1", generation=plan.epoch)).take(Received("m1", frame, payload, len(payload), 0.0))
        assert await_end().round == 2 and not waits.is_set()
        ended: list[int] = []
        await_own = group.begin(torch.zeros(16), 1.0)
        thread = threading.Thread(target=lambda: ended.append(await_own().round), daemon=True)
        thread.start()
        assert waits.wait(PATIENCE_S)
        group.fail(SyncError("m1 is gone"))
        thread.join(PATIENCE_S)
        assert ended == [3]
        group.close()
