"""The connection to the controller, which ends when the controller vanishes or reads nothing."""

from __future__ import annotations

import errno
import socket
import struct
import threading
from contextlib import closing
from pathlib import Path
from unittest.mock import Mock

import pytest

from testbed.protocol import Hello, Reach, Renew, Stop, Unreached, decode, encode
from testbed.sync import control_channel
from testbed.sync.control_channel import ControlChannel
from testbed.sync.errors import Stopped, SyncError
from tests.sync.proxy import unanswered
from tests.waiting import PATIENCE_S

pytestmark = pytest.mark.local


def test_a_controller_that_vanishes_is_noticed_like_a_member_that_does() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        host, port = listening.getsockname()
        with closing(ControlChannel(f"tcp:{host}:{port}", PATIENCE_S)) as channel:
            connection = channel._connection
            assert connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
            probes = (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_USER_TIMEOUT)
            assert [connection.getsockopt(socket.IPPROTO_TCP, option) for option in probes] == [60, 15, 120_000]


def test_a_controller_that_reads_nothing_does_not_block_a_member_for_good(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control_channel, "SILENT_S", 1)
    path = tmp_path / "c.sock"
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        listening.listen()
        with closing(ControlChannel(f"unix:{path}", PATIENCE_S)) as channel:
            with pytest.raises(OSError):
                while True:
                    channel.send(Renew("a"))
            assert channel.receive() is None


def test_a_connection_that_breaks_before_the_welcome_is_a_failed_join() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        host, port = listening.getsockname()
        with closing(ControlChannel(f"tcp:{host}:{port}", PATIENCE_S)) as channel:
            accepted, _ = listening.accept()
            accepted.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            accepted.close()  # resets the connection
            with pytest.raises(SyncError) as caught:
                channel.greet(Hello("a", (host, port)), PATIENCE_S)
            assert caught.value.rule == "no-welcome"


def test_a_member_that_waits_to_join_says_whom_it_can_t_reach(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control_channel, "REACHED_S", 0.1)
    with unanswered() as nowhere, socket.create_server(("127.0.0.1", 0)) as listening:
        address = listening.getsockname()
        with closing(ControlChannel(f"tcp:{address[0]}:{address[1]}", PATIENCE_S)) as channel:
            accepted, _ = listening.accept()
            with accepted, accepted.makefile("rb") as lines:
                for message in (Reach({"b": nowhere, "c": address}), Stop("the run is over")):
                    accepted.sendall(encode(message))
                with pytest.raises(Stopped):
                    channel.greet(Hello("a", address), PATIENCE_S)
                assert isinstance(decode(lines.readline()), Hello)
                assert decode(lines.readline()) == Unreached("a", ("b",))


def test_members_to_which_no_socket_can_be_opened_are_not_unreached(monkeypatch: pytest.MonkeyPatch) -> None:
    refused = OSError(errno.EMFILE, "Too many open files")
    monkeypatch.setattr(control_channel, "ReachCheck", Mock(side_effect=refused))
    assert control_channel.unreached({"b": ("127.0.0.1", 9)}) == ()


class Secured:
    """A connection as TLS wraps it, with a byte to read and a timeout."""

    def __init__(self, connection: socket.socket, timeout_s: float) -> None:
        self.fileno, self.recv_into = connection.fileno, connection.recv_into
        self.gettimeout = lambda: timeout_s
        self.pending = lambda: 0


@pytest.mark.parametrize("timeout_s", [1.0, 2_147_484.0, 1e7])
def test_a_welcome_over_tls_is_awaited_as_long_as_asked_or_as_the_kernel_can(timeout_s: float) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(b"+")
        reader = control_channel._TlsReader(Secured(ours, timeout_s), threading.Lock())  # type: ignore[arg-type]
        assert reader.readinto(bytearray(1)) == 1
