"""The wait of ranks for each other at their first sum, and the life of the controller that rank 0 starts."""

from __future__ import annotations

import os
import socket
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from testbed import sync, torch_backend
from testbed.plan import Plan
from testbed.protocol import Goodbye
from testbed.sync.c10d import group_rendezvous, make_group
from testbed.sync.c10d.group_rendezvous import GroupRendezvous, OwnController
from testbed.sync.errors import SyncError
from tests.sync.controller import Controller, job
from tests.sync.plans import names, star
from tests.sync.sessions import refuse_threads
from tests.waiting import PATIENCE_S

pytestmark = pytest.mark.local

MEMBERS = ("rank0", "rank1")


def test_ranks_wait_for_each_other_as_long_as_the_group_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TESTBED_CONTROLLER", "tcp:127.0.0.1:7000")
    monkeypatch.setenv("TESTBED_MEMBER", "m0")

    def nobody_comes(control: str, name: str, listen: str, device: str, timeout_s: float, *_: object) -> None:
        raise SyncError(f"the other members were not there within {timeout_s:.0f} s")

    monkeypatch.setattr(group_rendezvous, "rendezvous", nobody_comes)
    monkeypatch.setattr(GroupRendezvous, "_served", set())
    meeting = GroupRendezvous(dist.HashStore(), rank=0, size=2, among_all=True, controller=())
    with pytest.raises(SyncError, match="1800 s"):
        meeting.join(1800.0, lambda error: None)
    later = GroupRendezvous(dist.HashStore(), rank=0, size=2, among_all=True, controller=())
    assert meeting.planned and not later.planned, "a controller takes a member once"


class Started:
    """A controller that rank 0 says it has started."""

    def __init__(self, program: object, members: list[str], host: str, timeout_s: float) -> None:
        self.address = f"tcp:{host}:7000"
        self.tokens = dict.fromkeys(members, "a token")


@pytest.mark.parametrize(
    ("in_memory", "first", "host"),
    [(False, "192.0.2.9", "127.0.0.1"), (True, "192.0.2.9", "192.0.2.9"), (True, None, "127.0.0.1")],
    ids=["server", "network", "alone"],
)
def test_ranks_meet_at_the_store_s_host_or_at_an_address_of_rank_0_s_machine(
    monkeypatch: pytest.MonkeyPatch, in_memory: bool, first: str | None, host: str
) -> None:
    """The environment names neither: `init_process_group` was given a store, or an address or a file for one."""
    for name in ("TESTBED_CONTROLLER", "MASTER_ADDR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(group_rendezvous, "OwnController", Started)
    monkeypatch.setattr(group_rendezvous, "first_address", lambda: first)
    monkeypatch.setattr(group_rendezvous, "address_towards", lambda towards: towards)
    server = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    store = dist.PrefixStore("default", dist.HashStore() if in_memory else server)
    for rank, name in enumerate(MEMBERS):
        meeting = GroupRendezvous(store, rank, size=2, among_all=True, controller=())
        found = meeting._own_environment(1.0)
        assert (found.control, found.name, found.listen) == (f"tcp:{host}:7000", name, host)


def test_ranks_of_a_part_have_the_names_of_all_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TESTBED_CONTROLLER", raising=False)
    monkeypatch.setattr(group_rendezvous, "OwnController", Started)
    store = dist.HashStore()
    for rank, name in enumerate(("rank1", "rank3")):
        meeting = GroupRendezvous(store, rank, 2, among_all=False, controller=(), ranks=[1, 3])
        assert meeting._own_environment(1.0).name == name


def test_a_controller_ends_though_a_forked_child_holds_its_input() -> None:
    controller = OwnController(torch_backend.CONTROLLER, MEMBERS, "127.0.0.1", 60.0)
    assert controller._process.stdin is not None
    held = os.dup(controller._process.stdin.fileno())
    try:
        controller.close()
    finally:
        os.close(held)
    assert controller._process.returncode == 0 and not controller._folder.exists()


def test_a_rank_says_that_rank_0_has_not_come_to_its_first_sum(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TESTBED_CONTROLLER", raising=False)
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    store = dist.HashStore()
    store.set_timeout(timedelta(seconds=0.05))
    meeting = GroupRendezvous(store, rank=1, size=2, among_all=True, controller=())
    with pytest.raises(SyncError, match="rank 0") as caught:
        meeting.join(0.05, lambda error: None)
    assert caught.value.rule == "no-controller"


def test_a_wait_for_rank_0_ends_when_it_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TESTBED_CONTROLLER", raising=False)
    meeting = GroupRendezvous(dist.HashStore(), rank=1, size=2, among_all=True, controller=())
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(meeting.join, 1800.0, lambda error: None)
        meeting.give_up()
        with pytest.raises(SyncError) as caught:
            waiting.result(PATIENCE_S)
    assert caught.value.rule == "aborted"


def test_a_wait_for_the_other_ranks_ends_when_it_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("TESTBED_CONTROLLER", f"tcp:127.0.0.1:{silent.getsockname()[1]}")
        monkeypatch.setenv("TESTBED_MEMBER", "m0")
        meeting = GroupRendezvous(dist.HashStore(), rank=0, size=2, among_all=True, controller=())
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(meeting.join, 1800.0, lambda error: None)
            connection, _ = silent.accept()
            with connection:
                assert connection.recv(1) == b"{"  # of its hello
                meeting.give_up()
                with pytest.raises(SyncError) as caught:
                    waiting.result(PATIENCE_S)
    assert caught.value.rule == "aborted"


def failed_joins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lease_s: float = 0.0, size: int = 2
) -> list[SyncError]:
    """Let two ranks join by a controller, which fails. Returns their errors."""
    members = names(2)
    failures: list[SyncError] = []
    monkeypatch.setenv("TESTBED_LISTEN", "127.0.0.1")
    with Controller(tmp_path, Plan(0, members, (star(members, "m0"),)), job()) as controller:
        controller.lease_s = lease_s
        monkeypatch.setenv("TESTBED_CONTROLLER", controller.address)
        meetings = []
        for rank, member in enumerate(members):
            monkeypatch.setenv("TESTBED_MEMBER", member)
            meetings.append(GroupRendezvous(dist.HashStore(), rank, size, among_all=True, controller=()))

        def join(meeting: GroupRendezvous) -> SyncError:
            with pytest.raises(SyncError) as caught:
                meeting.join(PATIENCE_S, failures.append)
            return caught.value

        with ThreadPoolExecutor(len(meetings)) as pool:
            errors = list(pool.map(join, meetings))
        controller.await_messages(Goodbye, len(members))
    assert not failures, "the closing of a session is a failure, and the first one is the one that collectives name"
    return errors


@pytest.mark.parametrize(("lease_s", "size", "rule"), [(30.0, 2, "elastic"), (0.0, 3, "size")])
def test_a_controller_whose_members_may_leave_or_are_not_the_ranks_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lease_s: float, size: int, rule: str
) -> None:
    """After a loss, a sum would be the mean of the ranks that are left, times the number of all ranks."""
    assert [error.rule for error in failed_joins(tmp_path, monkeypatch, lease_s, size)] == [rule, rule]


def test_a_rank_that_no_session_can_be_made_for_does_not_fail_by_the_closing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse_threads(monkeypatch, "control")
    assert ["control" in str(error) for error in failed_joins(tmp_path, monkeypatch)] == [True, True]


def test_an_older_pytorch_is_refused_with_what_works_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "__version__", "2.12.1+cpu")
    with pytest.raises(dist.DistBackendError, match=r"2\.13.*2\.12\.1"):
        make_group(None, ())


def test_members_that_are_not_done_when_it_ends_go_on_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_rendezvous, "END_S", 0.1)
    group_timeout_s = 1e8  # PyTorch sets no limit
    controller = OwnController(torch_backend.CONTROLLER, MEMBERS, "127.0.0.1", group_timeout_s)

    def join(name: str) -> sync.Session:
        return sync.join(controller.address, name, "127.0.0.1", token=controller.tokens[name])

    def add(session: sync.Session) -> float:
        with session:
            values = torch.ones(100_000)
            session.allreduce(values)
            return float(values.sum())

    with ThreadPoolExecutor(len(MEMBERS)) as pool:
        sessions = list(pool.map(join, MEMBERS))
        controller.close()
        for session in sessions:
            session._control.join()  # it has heard all that the controller said
        assert list(pool.map(add, sessions)) == [100_000, 100_000]
