"""The process beside netem that sends requests at their moments, as its owner sees it."""

from __future__ import annotations

import os
import socket
import time
from contextlib import closing
from pathlib import Path

import pytest

from testbed.emulation import label
from testbed.emulation.interrupt import Interrupted
from testbed.emulation.network.netlink import NetlinkRequest
from testbed.emulation.shaping import ShapingError
from testbed.emulation.shaping.netem import NetemShaper
from testbed.emulation.shaping.timer import Batch, TimedRequests, Timer, TimerAnswer, receive
from tests.waiting import stop

pytestmark = pytest.mark.local


def test_one_that_does_not_answer_is_ended() -> None:
    timer = Timer()
    try:
        assert timer.ask(Batch()) == TimerAnswer([], None)
        assert timer.failure() is None
        timer._channel.settimeout(0.3)
        stop(timer._process.pid)
        with pytest.raises(ShapingError) as caught:
            timer.ask(Batch())
        assert caught.value.rule == "timeout"
        assert timer.failure() is not None
    finally:
        timer.close()


def test_an_answer_that_an_interrupt_left_unread_comes_with_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_: socket.socket) -> None:
        raise Interrupted("SIGINT")

    with closing(Timer()) as timer:
        with monkeypatch.context() as patch, pytest.raises(Interrupted):
            patch.setattr("testbed.emulation.shaping.timer.receive", interrupted)
            timer.ask(Batch())
        assert timer.ask(Batch(forget=["a->b"])) == TimerAnswer([], None)
        timer._channel.setblocking(False)
        with pytest.raises(BlockingIOError):
            timer._channel.recv(1)


def test_the_rows_of_many_links_come_in_one_message() -> None:
    """As of 70,000 rows, which are 9 MB."""
    requests = (NetlinkRequest(0, 0, bytes(9_000_000)),)
    rows = TimedRequests(time.monotonic() + 3600, Path("/proc/self/ns/net"), requests)
    with closing(Timer()) as timer:
        assert timer.ask(Batch(coming={"a->b": [rows]})) == TimerAnswer([], None)
        assert timer.ask(Batch(forget=["a->b"])) == TimerAnswer([], None)


def test_an_end_in_the_middle_of_a_message_is_an_end() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall((100).to_bytes(8) + b"half")
        theirs.close()
        assert receive(ours) is None


def test_one_that_starts_late_carries_the_label_of_its_own_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(label, "STATE_ROOT", tmp_path)
    monkeypatch.setattr(label, "ENVIRONMENT", f"TESTBED_TEST_{os.getpid()}")
    with label.labelled("first"):
        shaper = NetemShaper()
        with label.labelled("second"), closing(shaper._its_timer()):
            assert label.kill_processes("second") == []
            assert shaper.failure() is None
