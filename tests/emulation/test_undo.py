"""The order in which things are taken away, and the error that is raised where several steps fail."""

from __future__ import annotations

import pytest

from testbed.emulation.undo import UndoStack
from testbed.errors import in_full

pytestmark = pytest.mark.pure


def fail(text: str) -> None:
    raise OSError(text)


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


def test_what_fails_first_as_things_are_taken_away_is_raised_where_nothing_went_wrong_before() -> None:
    with pytest.raises(OSError) as raised:
        with UndoStack() as stack:
            stack.callback(fail, "no engine answers")
            stack.callback(fail, "no logs")
    assert str(raised.value) == "no logs"
    assert raised.value.__notes__ == ["the clean-up after this error failed too: no engine answers"]
