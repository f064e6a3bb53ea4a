"""Calls in processes of their own."""

from __future__ import annotations

import os
import signal
from multiprocessing import active_children

import pytest

from testbed.report.forked import ForkedCall

pytestmark = pytest.mark.local


def test_what_it_returns_is_of_another_process_that_is_gone_then() -> None:
    call = ForkedCall(os.getpid)
    assert call.result() != os.getpid()
    assert active_children() == []


def test_what_it_raises_is_raised() -> None:
    with pytest.raises(ZeroDivisionError):
        ForkedCall(lambda: 1 / 0).result()


def test_one_that_is_killed_returns_nothing() -> None:
    call = ForkedCall(lambda: signal.raise_signal(signal.SIGKILL))
    with pytest.raises(EOFError):
        call.result()


def test_ctrl_c_ends_it_without_a_word(capfd: pytest.CaptureFixture[str]) -> None:
    call = ForkedCall(lambda: signal.raise_signal(signal.SIGINT))
    with pytest.raises(EOFError):
        call.result()
    assert capfd.readouterr().err == ""
