"""The end of process groups: by leaving in turn, by an abort, and by a killed rank."""

from __future__ import annotations

import os
import signal
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from testbed.emulation.process import ProcessIdentity
from testbed.sync.errors import SyncError
from tests.sync.c10d.ranks import TIMEOUT_S, Ranks
from tests.waiting import stop, until

pytestmark = pytest.mark.local

LARGE = 50_000
#: The timeout in seconds of a group that waits for a rank in vain.
SHORT_S = 1


def groups_one_after_the_other(rank: int) -> None:
    for _ in range(2):
        group = dist.new_group(backend="wan")
        values = torch.ones(LARGE)
        dist.all_reduce(values, group=group)
        assert values.eq(4).all()
        dist.destroy_process_group(group)


def goes_on_after_a_child_of_its_own(rank: int) -> float:
    """Fork a child that ends as a script does, which shuts its copy of the group down."""
    group = dist.new_group(backend="wan")
    dist.all_reduce(torch.ones(LARGE), group=group)
    if (pid := os.fork()) == 0:
        try:
            group.shutdown()
        finally:
            os._exit(0)
    os.waitpid(pid, 0)
    values = torch.ones(LARGE)
    dist.all_reduce(values, group=group)
    dist.destroy_process_group(group)
    return float(values.mean())


def aborted_while_it_waits(rank: int) -> str:
    """Begin a sum at rank 0 alone, and abort the group at rank 1, after a first sum of all."""
    group = dist.new_group(backend="wan")
    dist.all_reduce(torch.ones(LARGE), group=group)
    dist.barrier(group)
    said = ""
    if rank == 1:
        group.abort()
    else:
        with pytest.raises(dist.DistBackendError) as failure:
            dist.all_reduce(torch.ones(LARGE), group=group)
        said = str(failure.value)
    dist.barrier()  # a rank that aborted before all others had failed would be named as well
    group.abort()
    return said


def aborted_before_another_comes(rank: int) -> str:
    """Abort the group at rank 0, where a thread is at the first sum and waits for rank 1."""
    group = dist.new_group(backend="wan")
    said = ""
    if rank == 0:
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(dist.all_reduce, torch.ones(LARGE), group=group)
            until(lambda: group._rendezvous._waits_at is not None)
            group.abort()
            with pytest.raises(dist.DistBackendError) as failure:
                waiting.result(TIMEOUT_S)
        said = str(failure.value)
    dist.barrier()
    if rank == 1:
        group.abort()
    return said


def tries_a_first_sum_again(rank: int) -> tuple[int, set[str]]:
    """Begin a first sum twice at a rank that can't join the others. Return how often it tried, and the errors."""
    group = dist.new_group(backend="wan")
    tried = []

    def join(*_: object) -> None:
        tried.append(rank)
        raise SyncError(f"no controller for try {len(tried)}")

    group._rendezvous.join = join
    said = set()
    for _ in range(2):
        with pytest.raises(dist.DistBackendError) as failure:
            dist.all_reduce(torch.ones(LARGE), group=group)
        said.add(str(failure.value))
    dist.barrier()
    dist.destroy_process_group(group)
    return len(tried), said


def trains_until_it_fails(rank: int) -> str:
    ddp = DistributedDataParallel(nn.Linear(200, 200))
    with pytest.raises(RuntimeError) as failure:
        for step in range(1000):
            if (rank, step) == (2, 3):
                os.kill(os.getpid(), signal.SIGKILL)
            ddp(torch.ones(4, 200)).sum().backward()
    with pytest.raises(RuntimeError):  # like all later collectives
        dist.all_reduce(torch.ones(LARGE))
    return str(failure.value)


def killed_before_its_first_sum(rank: int, pid: int) -> str:
    """Kill the last rank, and begin the first sum at the others once its connections are closed."""
    if os.getpid() == pid:
        os.kill(pid, signal.SIGKILL)
    until(lambda: ProcessIdentity.of(pid) is None)
    with pytest.raises(dist.DistBackendError) as failure:
        dist.all_reduce(torch.ones(LARGE))
    return str(failure.value)


def comes_to_no_first_sum(rank: int) -> str:
    group = dist.new_group(backend="wan", timeout=timedelta(seconds=SHORT_S))
    said = ""
    if rank == 0:
        with pytest.raises(dist.DistBackendError) as failure:
            dist.all_reduce(torch.ones(LARGE), group=group)
        said = str(failure.value)
    dist.barrier()
    group.abort()
    return said


def test_a_rank_that_dies_before_the_first_sum_ends_the_wait_at_the_others() -> None:
    with Ranks(4) as ranks:
        ranks.begin(killed_before_its_first_sum, ranks.processes[3].pid)
        assert all("lost before the first large sum" in said for said in ranks.end(0, 1, 2))


def test_a_rank_that_is_only_late_is_not_lost() -> None:
    with Ranks(2) as ranks:
        said, _ = ranks.do(comes_to_no_first_sum)
    assert f"did not join within {SHORT_S} s" in said


def test_groups_come_and_go(four: Ranks) -> None:
    four.do(groups_one_after_the_other)


def test_a_child_that_ends_leaves_its_parent_s_group_alone(four: Ranks) -> None:
    assert four.do(goes_on_after_a_child_of_its_own) == [4.0] * 4


def test_an_abort_is_an_error_at_the_others(four: Ranks) -> None:
    first, _, *others = four.do(aborted_while_it_waits)
    assert all("rank1" in said for said in (first, *others)), (first, others)


def test_an_abort_ends_the_wait_for_ranks_that_have_not_come() -> None:
    with Ranks(2) as ranks:
        said, _ = ranks.do(aborted_before_another_comes)
    assert "aborted" in said


def test_a_group_whose_first_sum_failed_stays_failed() -> None:
    with Ranks(2) as ranks:
        for tried, said in ranks.do(tries_a_first_sum_again):
            assert tried == 1 and len(said) == 1


def killed_once_it_has_a_controller(rank: int, folder: str) -> None:
    tempfile.tempdir = folder
    dist.all_reduce(torch.ones(LARGE))
    dist.barrier()
    if rank == 0:
        os.kill(os.getpid(), signal.SIGKILL)


def test_a_rank_that_is_killed_is_named_at_the_others() -> None:
    with Ranks(3) as ranks:
        ranks.begin(trains_until_it_fails)
        assert all("rank2" in said for said in ranks.end(0, 1))


def killed_while_another_is_waited_for(rank: int) -> list[str]:
    """Over gloo rank 0 waits for rank 1, which lives but does not come, so their connection does not end."""
    dist.all_reduce(torch.ones(LARGE))
    dist.barrier()
    if rank == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    if rank == 1:
        return []
    said = []
    for wait in (lambda work: work.wait(), lambda work: work.get_future().wait()):
        with pytest.raises(RuntimeError) as failure:
            wait(dist.broadcast(torch.ones(3), 1, async_op=True))
        said.append(str(failure.value))
    return said


def test_what_goes_over_gloo_ends_with_a_rank_that_it_does_not_wait_for() -> None:
    with Ranks(3) as ranks:
        ranks.begin(killed_while_another_is_waited_for)
        (said,) = ranks.end(0)
        assert len(said) == 2 and all("rank2" in words for words in said), said


def leaves_one_that_is_stopped(rank: int) -> str:
    group = dist.new_group(timeout=timedelta(seconds=TIMEOUT_S), backend="wan")
    dist.all_reduce(torch.ones(LARGE), group=group)
    reducing = group._session._engine.current
    reducing.settings = replace(reducing.settings, timeout_s=SHORT_S)  # not for the start of its controller
    pids = [0, 0]
    dist.all_gather_object(pids, os.getpid())
    dist.barrier()
    if rank == 1:
        dist.barrier()
        return ""
    stop(pids[1])
    try:
        with pytest.raises(dist.DistBackendError) as failure:
            dist.destroy_process_group(group)
    finally:
        os.kill(pids[1], signal.SIGCONT)
    dist.barrier()
    return str(failure.value)


def test_a_rank_that_leaves_waits_no_longer_than_the_timeout_and_names_the_peer() -> None:
    with Ranks(2) as ranks:
        said, _ = ranks.do(leaves_one_that_is_stopped)
    assert all(token in said for token in ("rank1", f"{SHORT_S} s"))


def test_the_controller_of_a_rank_that_is_killed_leaves_nothing(tmp_path: Path) -> None:
    with Ranks(2) as ranks:
        ranks.begin(killed_once_it_has_a_controller, str(tmp_path))
        ranks.end(1)
    until(lambda: not any(tmp_path.iterdir()))
