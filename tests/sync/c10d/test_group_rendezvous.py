"""The wait of ranks for each other at their first sum."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from testbed.sync.c10d import group_rendezvous, make_group
from testbed.sync.c10d.group_rendezvous import GroupRendezvous
from testbed.sync.errors import SyncError

pytestmark = pytest.mark.local


def test_ranks_wait_for_each_other_as_long_as_the_group_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TESTBED_CONTROLLER", "tcp:127.0.0.1:7000")
    monkeypatch.setenv("TESTBED_MEMBER", "m0")

    def nobody_comes(control: str, name: str, listen: str, device: str, timeout_s: float, *_: object) -> None:
        raise SyncError(f"the other members were not there within {timeout_s:.0f} s")

    monkeypatch.setattr(group_rendezvous, "rendezvous", nobody_comes)
    meeting = GroupRendezvous(dist.HashStore(), rank=0, size=2, among_all=True, controller=())
    with pytest.raises(SyncError, match="1800 s"):
        meeting.join(1800.0, lambda error: None)


def test_an_older_pytorch_is_refused_with_what_works_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "__version__", "2.12.1+cpu")
    with pytest.raises(dist.DistBackendError, match=r"2\.13.*2\.12\.1"):
        make_group(None, ())
