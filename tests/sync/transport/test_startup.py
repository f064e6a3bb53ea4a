"""When a connection begins again: slow without a reason that can be seen, and not too often."""

from __future__ import annotations

import socket
import time
from dataclasses import replace
from typing import Any

import pytest

from testbed.sync.transport import startup, tcpinfo
from testbed.sync.transport.startup import LOOK_S, WAIT_S, StartUp, StartUps
from testbed.sync.transport.tcpinfo import BbrInfo, TcpInfo
from tests.sync.transport.test_tcpinfo import AVAILABLE
from tests.waiting import until

TRIP_S = 0.15
FAST, SLOW = 1_000_000, 100_000


class Path:
    """A connection that always has bytes to send; its figures are read each LOOK_S."""

    def __init__(self) -> None:
        self.start_up = StartUp()
        self.now_s = 100.0
        self.info = TcpInfo(0, 0.0, TRIP_S, TRIP_S, 0, 0, unsent_bytes=1)

    def look(self, bytes_s: int, lost: int = 0, gain: float = 1.0, **changes: Any) -> bool:
        acked, retransmits = self.info.bytes_acked + int(bytes_s * LOOK_S), self.info.retransmits + lost
        self.info = replace(self.info, bytes_acked=acked, retransmits=retransmits)
        self.now_s += LOOK_S
        return self.start_up.observe(replace(self.info, **changes), BbrInfo(bytes_s, gain), self.now_s)

    def starts(self, bytes_s: int, seconds: float, **changes: Any) -> list[float]:
        """Return the moments, from now on, at which the connection begins again."""
        from_s = self.now_s
        looks = round(seconds / LOOK_S)
        return [self.now_s - from_s for _ in range(looks) if self.look(bytes_s, **changes)]


@pytest.mark.pure
def test_a_connection_that_is_slow_on_an_idle_path_begins_again() -> None:
    path = Path()
    assert not path.starts(FAST, 5.0)
    assert path.look(SLOW)


@pytest.mark.pure
@pytest.mark.parametrize("changes", [{"rtt_s": 2 * TRIP_S}, {"unsent_bytes": 0}, {"lost": 20}])
def test_a_queue_losses_and_nothing_to_send_are_reasons_to_be_slow(changes: dict[str, Any]) -> None:
    path = Path()
    path.look(FAST)
    assert not path.starts(SLOW, 60.0, **changes)


@pytest.mark.pure
def test_a_path_that_answers_nothing_is_left_alone() -> None:
    path = Path()
    path.look(FAST)
    path.look(SLOW, rtt_s=2 * TRIP_S)
    assert not path.starts(0, 5.0)


@pytest.mark.pure
def test_half_of_the_highest_rate_is_slow_and_more_is_not() -> None:
    path = Path()
    path.look(FAST)
    assert not path.starts(FAST // 2 + 1, 60.0)
    assert path.look(FAST // 2)


@pytest.mark.pure
def test_while_a_path_stays_slow_it_begins_again_after_twice_the_time() -> None:
    path = Path()
    path.look(FAST)
    first, *later = path.starts(SLOW, 60.0)
    waits = [after - before for before, after in zip([first, *later], later, strict=False)]
    assert waits == [2**n * WAIT_S for n in (1, 2, 3, 4)]


@pytest.mark.pure
def test_a_connection_that_grows_does_not_wait() -> None:
    path = Path()
    path.look(FAST)
    path.starts(SLOW, 30.0)
    assert path.look(2 * SLOW)
    assert not path.starts(4 * SLOW, 5.0, gain=2.89), "start-up is under way"
    assert not path.look(4 * SLOW)


@pytest.mark.pure
def test_after_it_was_fast_again_it_waits_as_at_first() -> None:
    path = Path()
    path.look(FAST)
    path.starts(SLOW, 60.0)
    path.starts(FAST, 60.0)
    first, second, *_ = path.starts(SLOW, 10.0)
    assert first == LOOK_S and second - first == 2 * WAIT_S


@pytest.mark.local
@pytest.mark.parametrize("control", ["reno", "bbr"])
def test_only_bbr_begins_again_and_stays_in_force(control: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if control not in AVAILABLE:
        pytest.skip(f"the kernel has no {control}")
    looks = []

    class Due(StartUp):
        def observe(self, info: TcpInfo, view: BbrInfo, now_s: float) -> bool:
            looks.append(now_s)
            return True

    monkeypatch.setattr(startup, "LOOK_S", 0.01)
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.socket() as sender:
        sender.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, control.encode())
        sender.connect(listener.getsockname())
        receiver, _ = listener.accept()
        with receiver:
            asked = []

            def connections() -> list[tuple[socket.socket, StartUp]]:
                asked.append(time.monotonic())
                return [(sender, Due())]

            start_ups = StartUps("a", connections)
            start_ups.start()
            until(lambda: len(asked) > 3)
            start_ups.close()
            sender.sendall(b"still open")
            assert receiver.recv(100) == b"still open"
            assert bool(looks) == (control == "bbr")
            assert tcpinfo.paces(sender) == (control == "bbr")
