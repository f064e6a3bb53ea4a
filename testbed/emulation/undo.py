"""Taking away what was made, in the reverse order, without losing sight of what went wrong first."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from types import TracebackType
from typing import ParamSpec, Self, TypeVar

from testbed.errors import in_full

T = TypeVar("T")
P = ParamSpec("P")


class UndoStack:
    """As an ExitStack, but the error that it raises is the first: what fails after that is a note of it.

    An ExitStack raises the last one: a dead engine, which fails whatever is to be taken away, would be said in the
    place of why a run ended.
    """

    def __init__(self) -> None:
        self._undo: list[Callable[[], object]] = []

    def callback(self, undo: Callable[P, object], *args: P.args, **kwargs: P.kwargs) -> None:
        """Call this on leaving."""
        self._undo.append(partial(undo, *args, **kwargs))

    def enter_context(self, context: AbstractContextManager[T]) -> T:
        """Enter a context; it is left, as without an error, on leaving."""
        value = context.__enter__()
        self.callback(context.__exit__, None, None, None)
        return value

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        first = error
        failures = []  # kept until all is undone: an interrupt refuses the next one for as long as it is there
        while self._undo:
            try:
                self._undo.pop()()
            except BaseException as failure:
                failures.append(failure)
                if first is None:
                    first = failure
                else:
                    first.add_note(f"the clean-up after this error failed too: {in_full(failure)}")
        if first is not None and first is not error:
            raise first
