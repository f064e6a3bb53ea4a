"""A group that waits for the end of its round."""

from __future__ import annotations

import socket
import threading

import pytest
import torch

from testbed.plan import Plan
from testbed.sync.allreduce.group import AllReduceGroup
from testbed.sync.allreduce.receiver import Loss
from testbed.sync.errors import Halted
from testbed.sync.transport.handshake import TransportSettings
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
