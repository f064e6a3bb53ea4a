from __future__ import annotations

import socket
import threading
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from testbed.sync.transport import tcpinfo
from testbed.sync.transport.tcpinfo import PROBING, TcpInfo
from tests.waiting import until

IDLE = TcpInfo(0, 0.0, 0.1, 0.1, 0, 0, window_bytes=100_000, pacing_bytes_s=600_000)
AVAILABLE = Path("/proc/sys/net/ipv4/tcp_available_congestion_control").read_text().split()
#: The longest tick of the clock by which the kernel counts: 10 ms where CONFIG_HZ is 100.
JIFFY_S = 0.01


@pytest.mark.pure
def test_tcp_lets_go_a_window_a_round_trip_and_no_more_than_its_pace() -> None:
    assert IDLE.allowed_bytes_s(paced=False) == 1_000_000
    assert IDLE.allowed_bytes_s(paced=True) == 600_000
    assert replace(IDLE, min_rtt_s=0.0).allowed_bytes_s(paced=True) == 0


@pytest.mark.pure
def test_where_packets_wait_it_is_the_path_that_holds_back_what_has_no_pace() -> None:
    crowded = replace(IDLE, rtt_s=0.3)
    assert crowded.allowed_bytes_s(paced=False) == 0
    assert crowded.allowed_bytes_s(paced=True) == 600_000


@pytest.mark.pure
def test_a_connection_is_idle_once_all_it_sent_has_arrived() -> None:
    assert IDLE.idle
    assert not replace(IDLE, unsent_bytes=1).idle and not replace(IDLE, unacked_packets=1).idle


@pytest.mark.pure
def test_what_waited_before_a_pause_waits_no_more() -> None:
    crowded = replace(IDLE, rtt_s=0.3)
    assert crowded.queues and replace(crowded, last_ack_s=0.15).queues
    assert not replace(crowded, last_ack_s=0.25).queues


@pytest.mark.local
def test_the_kernel_says_how_long_ago_it_was_acknowledged() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.socket() as sender:
        began = time.monotonic()
        sender.connect(listener.getsockname())
        receiver, _ = listener.accept()
        with receiver:
            sender.sendall(bytes(1000))
            receiver.recv(1000)
            until(lambda: tcpinfo.read(sender).last_ack_s >= 0.05)
            assert tcpinfo.read(sender).last_ack_s <= time.monotonic() - began + JIFFY_S


@pytest.mark.local
@pytest.mark.parametrize("control", ["reno", "cubic", "bbr"])
def test_only_bbr_looks_for_more_at_times(control: str) -> None:
    if control not in AVAILABLE:
        pytest.skip(f"the kernel has no {control}")
    gains = set()
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.socket() as sender:
        sender.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, control.encode())
        sender.connect(listener.getsockname())
        receiver, _ = listener.accept()

        def read() -> None:
            with receiver, suppress(OSError):
                while receiver.recv(1 << 20):
                    pass

        thread = threading.Thread(target=read)
        thread.start()
        stops = time.monotonic() + (0.5 if control == "bbr" else 0.0)
        while not gains or time.monotonic() < stops:
            sender.sendall(bytes(100_000))
            view = tcpinfo.bbr(sender)
            gains.add(view.probing_gain if view else None)
        sender.shutdown(socket.SHUT_WR)
        thread.join()
    assert gains <= ({1.0, PROBING} if control == "bbr" else {None})


@pytest.mark.local
def test_a_connection_keeps_its_control_if_the_kernel_would_not_take_it_again(monkeypatch: pytest.MonkeyPatch) -> None:
    control = next((control for control in AVAILABLE if control != "reno"), None)
    if control is None:
        pytest.skip("the kernel has reno alone")
    with socket.socket() as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, control.encode())
        kept = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16)
        monkeypatch.setattr(tcpinfo, "_control", lambda connection: b"no-such-control")
        with pytest.raises(OSError):
            tcpinfo.begin_again(connection)
        assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16) == kept
