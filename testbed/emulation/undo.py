"""A stack of clean-up actions that runs in reverse order and keeps the first error."""

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
    """As an ExitStack, but raises the first error; later errors become notes of it.

    An ExitStack raises the last error: when the engine dies, its failure during the clean-up would hide why a run
    ended.
    """

    def __init__(self) -> None:
        self._undo: list[Callable[[], object]] = []

    def callback(self, undo: Callable[P, object], *args: P.args, **kwargs: P.kwargs) -> None:
        """Register a call for the end of the context."""
        self._undo.append(partial(undo, *args, **kwargs))

    def enter_context(self, context: AbstractContextManager[T]) -> T:
        """Enter a context, and leave it at the end as if no error had occurred. Returns the context's value."""
        value = context.__enter__()
        self.callback(context.__exit__, None, None, None)
        return value

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        first = error
        failures = []  # kept until all is undone: while an Interrupted object exists, no further one is raised
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
