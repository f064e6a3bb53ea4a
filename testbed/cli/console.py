"""What verbs share: exit codes, how a fault is said, and options that several have.

0 done; 1 the run failed, or its verdict is `suspect` under --strict; 2 bad input; 3 this machine can't.

A verb lets errors through. `Verbs`, the boundary around all of them, turns each into words and its exit code.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from pydantic import TypeAdapter, ValidationError
from rich.console import Console
from rich.text import Text
from typer.core import TyperGroup
from typer.exceptions import Abort, Exit, TyperException

from testbed.emulation.errors import ending_of
from testbed.emulation.interrupt import Interrupted, interruptible
from testbed.errors import BAD_INPUT as BAD_INPUT
from testbed.errors import CANNOT as CANNOT
from testbed.errors import FAILED as FAILED
from testbed.run.terminal.phrases import fitted

if TYPE_CHECKING:
    from testbed.run.terminal.display import Display

if TYPE_CHECKING:
    from testbed.api.entry import Door

INTERRUPTED = 130

Open = Annotated[bool, typer.Option("--open", help="show its page in the browser, and take changes there")]
Port = Annotated[
    int | None, typer.Option("--port", min=0, max=65535, metavar="P", help="its API on 127.0.0.1:P as well; 0 is any")
]

out = Console(highlight=False, soft_wrap=True)
err = Console(stderr=True, highlight=False, soft_wrap=True)


Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="no progress, but what it comes to")]


def progress_display(quiet: bool, beside_output: bool = False, door: Door | None = None) -> Display:
    """What shows how far a verb is, on the error output where the output is for programs; nothing where `quiet`."""
    from testbed.run.terminal.display import Display

    return Display(Console(quiet=quiet, stderr=beside_output), door)


def fail(code: int, text: object) -> typer.Exit:
    """Say why, and the exit with this code, to be raised."""
    err.print(fitted(Text(str(text)), err))
    return typer.Exit(code)


class Verbs(TyperGroup):
    """All verbs. An error that leaves one of them ends the program in words, with the error's exit code."""

    def invoke(self, ctx: Any) -> Any:
        try:
            # Where the current folder was deleted this fails, and else PyTorch's MKL would end the process by itself.
            Path.cwd()
            return super().invoke(ctx)
        except (Exit, Abort, TyperException, BrokenPipeError):
            raise
        except Exception as error:
            raise fail(*ending_of(error)) from None


@contextmanager
def interruptible_verb(then: str) -> Iterator[None]:
    """Let signals interrupt the body; the program then ends in words, of which `then` are the last."""
    try:
        with interruptible():
            yield
    except Interrupted as signal_:
        raise fail(INTERRUPTED, f"interrupted ({signal_}){then}") from None


def door(open_: bool, port: int | None) -> Door | None:
    """What `--open` and `--port` ask for."""
    from testbed.api.entry import Door

    return Door(port or 0, open_) if open_ or port is not None else None


def quantity(kind: Any) -> Callable[[str | float], float]:
    """A parser of options of a kind from `spec.units`: `50mbit`, `110ms`, as in topology files."""
    adapter = TypeAdapter[float](kind)

    def parse(text: str | float) -> float:
        if isinstance(text, float):  # a default
            return text
        try:
            return adapter.validate_python(text)
        except ValidationError as error:
            rule, _, remedy = error.errors()[0]["msg"].removeprefix("Value error, ").partition(" | ")
            raise typer.BadParameter(f"{rule}; write {remedy}") from None

    return parse
