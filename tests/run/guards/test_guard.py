"""What waits for ever is ended, and what was made is taken away all the same."""

from __future__ import annotations

import signal
import threading

import pytest

from testbed.run.errors import RunFailed
from testbed.run.guards.guard import Guard


@pytest.mark.pure
def test_what_takes_longer_than_it_may_ends_by_its_name() -> None:
    undone: list[str] = []
    with pytest.raises(RunFailed) as caught:
        with Guard() as guard:
            guard.callback(undone.append, "network")
            guard.allow(0.05, "building the network")
            threading.Event().wait()
    assert caught.value.rule == "timeout"
    assert undone == ["network"]


@pytest.mark.pure
def test_nothing_rings_afterwards_but_what_was_set_before() -> None:
    handler = signal.getsignal(signal.SIGALRM)
    before = signal.getitimer(signal.ITIMER_REAL)
    with Guard() as guard:
        guard.allow(1000.0, "a look")
    assert signal.getsignal(signal.SIGALRM) == handler
    assert (signal.getitimer(signal.ITIMER_REAL)[0] > 0) == (before[0] > 0)
    assert signal.getitimer(signal.ITIMER_REAL)[0] <= before[0]


@pytest.mark.local
def test_in_another_thread_there_is_no_alarm() -> None:
    errors: list[BaseException] = []

    def run() -> None:
        try:
            with Guard() as guard:
                guard.allow(0.001, "a look")
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert not errors
