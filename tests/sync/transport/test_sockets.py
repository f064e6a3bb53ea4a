"""Sockets for long paths that may be down for a while."""

from __future__ import annotations

import errno
import socket
from contextlib import closing

import pytest

from testbed.sync.transport.sockets import RTO_LIMIT_S, RTO_MAX_S, ReachCheck, limit_unsent, rto_max_s, tune
from tests.sync.proxy import unanswered
from tests.waiting import until


@pytest.mark.pure
@pytest.mark.parametrize("timeout_s", [1.0, 20.0, 120.0, 600.0])
@pytest.mark.parametrize("retries", [3, 8, 15, 255])
def test_probes_last_as_long_as_the_timeout_if_they_can(timeout_s: float, retries: int) -> None:
    longest = rto_max_s(timeout_s, retries)
    lasts = sum(min(0.2 * 2**i, longest) for i in range(retries))
    assert RTO_MAX_S <= longest <= RTO_LIMIT_S
    assert lasts >= timeout_s or longest == RTO_LIMIT_S or lasts == sum(0.2 * 2**i for i in range(retries))


@pytest.mark.pure
def test_with_probes_enough_a_link_is_used_soon_after_it_is_back() -> None:
    assert rto_max_s(120.0, 255) == RTO_MAX_S
    assert rto_max_s(120.0, 15) > RTO_MAX_S


@pytest.mark.local
@pytest.mark.parametrize(("chunk", "limit"), [(20, 32), (16 * 1024, 32), (48 * 1024, 96), (256 * 1024, 128)])
def test_the_kernel_holds_the_next_chunk_and_little_more(chunk: int, limit: int) -> None:
    with socket.socket() as connection:
        limit_unsent(connection, chunk)
        assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT) == limit * 1024


@pytest.mark.local
@pytest.mark.parametrize("timeout_s", [1.0, 2_147_483.0, 2_147_484.0, 1e7])
def test_a_connection_waits_as_long_as_asked_or_as_the_kernel_can(timeout_s: float) -> None:
    with socket.socket() as connection:
        tune(connection, timeout_s)
        waits_ms = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)
    assert waits_ms == min(int(timeout_s * 1000), 2**31 - 1)


@pytest.mark.local
@pytest.mark.parametrize(("timeout_s", "idle_s"), [(0.5, None), (120.0, 15), (1800.0, 60)])
def test_an_idle_connection_is_kept_in_firewalls_and_ends_with_its_peer_s_machine(
    timeout_s: float, idle_s: int | None
) -> None:
    with socket.socket() as connection:
        tune(connection, timeout_s)
        assert connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == (idle_s is not None)
        if idle_s is not None:
            assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == idle_s
            assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL) == idle_s


@pytest.mark.local
def test_a_peer_that_accepts_or_refuses_a_connection_is_reached() -> None:
    with unanswered() as nowhere, socket.create_server(("127.0.0.1", 0)) as accepting, socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        addresses = {"a": accepting.getsockname(), "b": closed.getsockname(), "c": nowhere}
        with closing(ReachCheck(addresses)) as check:
            until(lambda: not check.step() and check.unreached == {"c"})
        with closing(ReachCheck({"a": accepting.getsockname()})) as check:
            until(check.step)
            assert not check.unreached


@pytest.mark.local
def test_a_failure_of_this_machine_says_nothing_about_a_peer(monkeypatch: pytest.MonkeyPatch) -> None:
    class Exhausted(socket.socket):
        def connect_ex(self, address: object) -> int:
            return errno.EADDRNOTAVAIL  # all local ports are taken

    with unanswered() as nowhere:
        monkeypatch.setattr(socket, "socket", Exhausted)
        with closing(ReachCheck({"a": nowhere})) as check:
            assert check.step() and not check.unreached


@pytest.mark.local
def test_a_check_that_may_open_no_more_files_keeps_none_open(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[socket.socket] = []

    class Scarce(socket.socket):
        def __init__(self, *args: int) -> None:
            if opened:
                raise OSError(errno.EMFILE, "Too many open files")
            super().__init__(*args)
            opened.append(self)

    with unanswered() as nowhere:
        monkeypatch.setattr(socket, "socket", Scarce)
        with pytest.raises(OSError):
            ReachCheck({"a": nowhere, "b": nowhere})
    assert [one.fileno() for one in opened] == [-1]
