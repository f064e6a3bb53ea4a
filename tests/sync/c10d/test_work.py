"""A group keeps no reference to completed works, and works that its failure ends have its error."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist

from testbed.sync.c10d.work import GlooWork, GroupFailure
from testbed.sync.errors import SyncError

pytestmark = pytest.mark.pure


class Done(dist.Work):
    """A work of gloo that was completed before its future was requested."""

    def get_future(self) -> torch.futures.Future[Any]:
        future: torch.futures.Future[Any] = torch.futures.Future()
        future.set_result([])
        return future


def test_a_work_that_is_over_is_told_of_no_failure() -> None:
    failure = GroupFailure()
    future = GlooWork(Done(), torch.device("cpu"), failure).get_future()
    assert future.value() == [] and not failure._callbacks


class Pending(dist.Work):
    """A work of gloo that waits for a rank which is gone."""

    def is_completed(self) -> bool:
        return False

    def exception(self) -> Any:
        return None


def test_a_work_that_the_failure_of_its_group_ended_has_the_error() -> None:
    failure = GroupFailure()
    work = GlooWork(Pending(), torch.device("cpu"), failure)
    assert not work.is_completed() and work.exception() is None
    failure.set(SyncError("rank1 is gone"))
    assert work.is_completed() and not work.is_success()
    assert isinstance(work.exception(), dist.DistBackendError) and "rank1" in str(work.exception())
