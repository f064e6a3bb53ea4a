"""A phase that takes too long ends by its name, and a clean-up hides no error."""

from __future__ import annotations

import signal
import threading

import pytest

from testbed.errors import in_full
from testbed.run.errors import RunFailed
from testbed.run.guards import Guard, UndoStack


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


def fail(text: str) -> None:
    raise OSError(text)


@pytest.mark.pure
def test_the_first_error_is_raised_and_the_others_are_its_notes() -> None:
    undone: list[str] = []
    with pytest.raises(RuntimeError) as raised:
        with UndoStack() as stack:
            stack.callback(undone.append, "network")
            stack.callback(fail, "no engine answers")
            stack.callback(fail, "no logs")
            raise RuntimeError("the disk is full")
    assert undone == ["network"] and str(raised.value) == "the disk is full"
    assert raised.value.__notes__ == [
        "the clean-up after this error failed too: no logs",
        "the clean-up after this error failed too: no engine answers",
    ]


@pytest.mark.pure
def test_notes_of_what_failed_inside_are_kept() -> None:
    with pytest.raises(RuntimeError) as raised:
        with UndoStack() as outer:
            inner = UndoStack()
            inner.callback(fail, "no engine answers")
            inner.callback(fail, "no logs")
            outer.callback(inner.__exit__, None, None, None)
            raise RuntimeError("the disk is full")
    first, _, rest = in_full(raised.value).partition("\n")
    assert first == "the disk is full" and rest.index("no logs") < rest.index("no engine answers")


@pytest.mark.pure
def test_what_fails_first_as_things_are_taken_away_is_raised_where_nothing_went_wrong_before() -> None:
    with pytest.raises(OSError) as raised:
        with UndoStack() as stack:
            stack.callback(fail, "no engine answers")
            stack.callback(fail, "no logs")
    assert str(raised.value) == "no logs"
    assert raised.value.__notes__ == ["the clean-up after this error failed too: no engine answers"]
