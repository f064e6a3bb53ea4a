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
from testbed.resources import preset_or_file, presets
from testbed.run.terminal.phrases import fitted

if TYPE_CHECKING:
    from testbed.run.terminal.display import Display

if TYPE_CHECKING:
    from testbed.api.entry import ApiPort

INTERRUPTED = 130

Open = Annotated[bool, typer.Option("--open", help="show its page in the browser, and take changes there")]
Port = Annotated[
    int | None, typer.Option("--port", min=0, max=65535, metavar="P", help="its API on 127.0.0.1:P as well; 0 is any")
]

out = Console(highlight=False, soft_wrap=True)
err = Console(stderr=True, highlight=False, soft_wrap=True)


Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="no progress, but what it comes to")]


def _named(kind: str) -> Callable[[Path | None], Path | None]:
    """Return what makes a preset's file of its name, for an argument of the command line."""
    return lambda path: None if path is None else preset_or_file(kind, path)


#: Arguments that take a file, or the name of a preset.
ExperimentFile = Annotated[
    Path,
    typer.Argument(
        metavar="EXPERIMENT",
        help="the experiment file, or a preset (`testbed experiment list`)",
        callback=_named("experiment"),
    ),
]
TOPOLOGY = typer.Argument(
    metavar="TOPOLOGY", help="the topology file, or a preset (`testbed topology list`)", callback=_named("topology")
)
TopologyFile = Annotated[Path, TOPOLOGY]


def list_presets(kind: str) -> None:
    """Print the name of each preset of a kind, and the first sentence of the comment in its file."""
    files = list(presets(kind))
    width = max(len(file.stem) for file in files)
    for file in files:
        first = file.read_text(encoding="utf-8").partition("\n")[0].lstrip("# ")
        out.print(f"{file.stem:<{width}}  {first}", markup=False)


def progress_display(quiet: bool, beside_output: bool = False, port: ApiPort | None = None) -> Display:
    """What shows how far a verb is, on the error output where the output is for programs; nothing where `quiet`."""
    from testbed.run.terminal.display import Display

    return Display(Console(quiet=quiet, stderr=beside_output), port)


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


def link_argument(written: str) -> str:
    """Return a link as it was written on the command line. Exit where the shell took the `>` of `a->b` away."""
    if written.endswith("-") and "->" not in written:
        try:
            file = Path("/proc/self/fd/1").readlink()
        except OSError:
            file = Path("b")
        made = f", and made the file {file.name}" if file.is_file() else ""
        site = file.name if made else "b"
        rule = f"{written}: the shell took `>` for a redirection of the output{made}"
        raise fail(BAD_INPUT, f"{rule}\n    write instead: '{written}>{site}' in quotes, or {written}{site}")
    return written


def api_port(open_: bool, port: int | None) -> ApiPort | None:
    """Return the port of the API that `--open` and `--port` ask for, or None."""
    from testbed.api.entry import ApiPort

    return ApiPort(port or 0, open_) if open_ or port is not None else None


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
