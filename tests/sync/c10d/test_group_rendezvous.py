"""How long ranks wait for each other at their first sum."""

from __future__ import annotations

import pytest
import torch.distributed as dist

from testbed.sync.c10d import group_rendezvous
from testbed.sync.c10d.group_rendezvous import GroupRendezvous
from testbed.sync.errors import SyncError

pytestmark = pytest.mark.local


def test_ranks_wait_for_each_other_as_long_as_the_group_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TESTBED_CONTROLLER", "tcp:127.0.0.1:7000")
    monkeypatch.setenv("TESTBED_MEMBER", "m0")

    def nobody_comes(control: str, name: str, listen: str, device: str, patience_s: float, *_: object) -> None:
        raise SyncError(f"the other members were not there within {patience_s:.0f} s")

    monkeypatch.setattr(group_rendezvous, "rendezvous", nobody_comes)
    meeting = GroupRendezvous(dist.HashStore(), rank=0, size=2, among_all=True)
    with pytest.raises(SyncError, match="1800 s"):
        meeting.join(1800.0, lambda error: None)
