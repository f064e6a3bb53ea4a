"""A group keeps no reference to completed works."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist

from testbed.sync.c10d.work import GlooWork, GroupFailure

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
