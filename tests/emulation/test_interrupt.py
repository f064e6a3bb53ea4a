"""The effect of a signal on a program that has made things."""

from __future__ import annotations

import io
import signal
import sys
from typing import Any

import pytest

from testbed.emulation.interrupt import NUMBERS, Interrupted, interruptible
from testbed.run.guards import UndoStack

pytestmark = [pytest.mark.pure, pytest.mark.usefixtures("signal_handlers")]


class LetGo:
    """Let go of just when a signal comes."""

    def __del__(self) -> None:
        signal.raise_signal(signal.SIGINT)


class Interrupting(io.RawIOBase):
    """A file to which a write takes so long that a signal comes."""

    def writable(self) -> bool:
        return True

    def write(self, content: Any) -> int:
        signal.raise_signal(signal.SIGINT)
        return len(content)


def test_later_signals_wait_for_the_clean_up(capfd: pytest.CaptureFixture[str]) -> None:
    cleaned = False
    with pytest.raises(Interrupted, match="SIGTERM"), interruptible():
        try:
            signal.raise_signal(signal.SIGTERM)
        finally:
            for number in NUMBERS:
                signal.raise_signal(number)
            cleaned = True
    assert cleaned
    assert capfd.readouterr().err == "cleaning up, please wait\n" * len(NUMBERS)
    signal.raise_signal(signal.SIGINT)  # deaf until the end


def test_a_signal_that_the_interpreter_dropped_leaves_nobody_deaf(monkeypatch: pytest.MonkeyPatch) -> None:
    dropped: list[str] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda told: dropped.append(told.exc_type.__name__))
    with pytest.raises(Interrupted), interruptible():
        LetGo()
        assert dropped == ["Interrupted"]
        signal.raise_signal(signal.SIGINT)


def test_a_signal_that_comes_as_things_are_taken_away_is_the_only_one() -> None:
    """Also where something had gone wrong before: what would go on after the error ends with the interrupt."""
    undone: list[int] = []

    def undo() -> None:
        signal.raise_signal(signal.SIGINT)
        undone.append(1)

    with pytest.raises(Interrupted) as raised, interruptible(), UndoStack() as stack:
        for _ in range(3):
            stack.callback(undo)
        raise OSError("the disk is full")
    assert undone == [1, 1]
    assert raised.value.__notes__ == ["it came in the clean-up after: the disk is full"]


def test_a_signal_as_the_error_output_is_being_written_to_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", io.TextIOWrapper(io.BufferedWriter(Interrupting()), line_buffering=True))
    with pytest.raises(Interrupted), interruptible():
        try:
            signal.raise_signal(signal.SIGINT)
        finally:
            print("words", file=sys.stderr, flush=True)


def test_a_process_that_ignores_a_hang_up_goes_on_ignoring_it() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with interruptible():
        signal.raise_signal(signal.SIGHUP)
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
