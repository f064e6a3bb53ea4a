"""The process beside netem that sends requests at their moments, as its owner sees it."""

from __future__ import annotations

import pytest

from testbed.emulation.shaping import ShapingError
from testbed.emulation.shaping.timer import Batch, Timer, TimerAnswer
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
