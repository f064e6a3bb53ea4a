"""What all verbs share: exit codes, how a fault is said, and quantities as options.

0 done; 1 the run failed, or its verdict is `suspect` under --strict; 2 bad input; 3 this machine can't.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer
from pydantic import TypeAdapter, ValidationError
from rich.console import Console
from rich.text import Text

from testbed.run.phrases import fitted

if TYPE_CHECKING:
    from testbed.run.display import Display

FAILED, BAD_INPUT, CANNOT, INTERRUPTED = 1, 2, 3, 130

out = Console(highlight=False, soft_wrap=True)
err = Console(stderr=True, highlight=False, soft_wrap=True)


Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="no progress, but what it comes to")]


def progress_display(quiet: bool, beside_output: bool = False) -> Display:
    """What shows how far a verb is, on the error output where the output is for programs; nothing where `quiet`."""
    from testbed.run.display import Display

    return Display(Console(quiet=quiet, stderr=beside_output))


def fail(code: int, text: object) -> typer.Exit:
    """Say why, and the exit with this code, to be raised."""
    err.print(fitted(Text(str(text)), err))
    return typer.Exit(code)


@contextmanager
def refusing(*kinds: type[Exception]) -> Iterator[None]:
    """What is wrong with the input, by errors of these kinds: in words, and as exit code 2."""
    try:
        yield
    except kinds as error:
        raise fail(BAD_INPUT, error) from None


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
