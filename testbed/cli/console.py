"""The shared parts of the commands: exit codes, error texts, and options that several commands have.

Exit codes: 0 done; 1 the run failed, or its verdict is `suspect` under --strict; 2 bad input; 3 this machine can't;
130 interrupted.

Commands do not catch errors: `Verbs`, the group of all commands, turns each error into a text and an exit code.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from pydantic import TypeAdapter, ValidationError
from rich.console import Console
from rich.table import Table
from rich.text import Text
from typer.core import TyperGroup
from typer.exceptions import Abort, Exit, TyperException

from testbed.emulation.errors import ending_of
from testbed.emulation.interrupt import Interrupted, interruptible
from testbed.errors import BAD_INPUT as BAD_INPUT
from testbed.errors import CANNOT as CANNOT
from testbed.errors import FAILED as FAILED
from testbed.resources import preset_or_file, presets
from testbed.run.terminal.wrap import wrapped

if TYPE_CHECKING:
    from testbed.api.entry import ApiPort
    from testbed.run.terminal.display import Display

INTERRUPTED = 130

Open = Annotated[
    bool,
    typer.Option(
        "--open", help="open the live page in your browser, where links, plans and workers can be changed too"
    ),
]
Port = Annotated[
    int | None,
    typer.Option(
        "--port",
        min=0,
        max=65535,
        metavar="P",
        help="serve the page and the HTTP API on 127.0.0.1:P; 0 takes any free port",
    ),
]

out = Console(highlight=False, soft_wrap=True)
err = Console(stderr=True, highlight=False, soft_wrap=True)

Json = Annotated[bool, typer.Option("--json", help="print JSON, for programs")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="print the result alone, without progress")]


def _named(kind: str) -> Callable[[Path | None], Path | None]:
    return lambda path: None if path is None else preset_or_file(kind, path)


#: Arguments that take a file or the name of a preset.
ExperimentFile = Annotated[
    Path,
    typer.Argument(
        metavar="EXPERIMENT",
        help="an experiment file, or a preset's name (`testbed experiment list`)",
        callback=_named("experiment"),
    ),
]
TOPOLOGY = typer.Argument(
    metavar="TOPOLOGY",
    help="a topology file, or a preset's name (`testbed topology list`)",
    callback=_named("topology"),
)
TopologyFile = Annotated[Path, TOPOLOGY]


def list_presets(kind: str) -> None:
    """Print the name of each preset of a kind, and the first sentence of the comment in its file."""
    files = list(presets(kind))
    width = max(len(file.stem) for file in files)
    for file in files:
        lines = takewhile(lambda line: line.startswith("#"), file.read_text(encoding="utf-8").splitlines())
        comment = " ".join(line.lstrip("# ") for line in lines)
        first = re.split(r"(?<=\.)\s", comment, maxsplit=1)[0]
        out.print(f"{file.stem:<{width}}  {first}", markup=False)


def progress_display(quiet: bool, beside_output: bool = False, port: ApiPort | None = None) -> Display:
    """Return the display of a command's progress, on the error output where the output is for programs."""
    from testbed.run.terminal.display import Display, ProgressConsole

    return Display(ProgressConsole(quiet=quiet, stderr=beside_output), port)


def plain_table(*words: str, numbers: Iterable[str] = (), then: Iterable[str] = ()) -> Table:
    """Return a table without lines: columns of words, columns of numbers, and `then` columns of words again.

    The titles hold no markup: a sweep's file may name an axis `delay [ms]`.
    """
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for column in words:
        table.add_column(Text(column))
    for column in numbers:
        table.add_column(Text(column), justify="right")
    for column in then:
        table.add_column(Text(column))
    return table


def fail(code: int, text: object) -> typer.Exit:
    """Print `text` on the error output, and return the exit with this code, for the caller to raise."""
    with suppress(OSError):  # the terminal may have gone
        err.print(wrapped(Text(str(text)), err))
    return typer.Exit(code)


def bad_input(problem: str, remedy: str) -> typer.Exit:
    """Print a problem with the input and what to write instead. Return the exit, for the caller to raise."""
    return fail(BAD_INPUT, f"{problem}\n    write instead: {remedy}")


class Verbs(TyperGroup):
    """The group of all commands. An error that leaves a command is printed, and its exit code ends the program."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command, and turn its error into a text and an exit code."""
        try:
            # This fails if the current folder was deleted; PyTorch's MKL would end the process without a text.
            Path.cwd()
            return super().invoke(ctx)
        except (Exit, Abort, TyperException, BrokenPipeError):
            raise
        except Exception as error:
            raise fail(*ending_of(error)) from None


@contextmanager
def interruptible_verb(then: str) -> Iterator[None]:
    """Let signals interrupt the body; the program then ends with a text that `then` completes."""
    try:
        with interruptible():
            yield
    except Interrupted as signal_:
        text = f"interrupted ({signal_}){then}"
        raise fail(INTERRUPTED, "\n".join([text, *getattr(signal_, "__notes__", ())])) from None


def need_root() -> None:
    """Exit unless the user is root: only root can make networks and enter them."""
    if os.geteuid() != 0:
        raise fail(CANNOT, "making and entering networks needs root; run it with sudo")


def link_argument(written: str) -> str:
    """Return a link as written on the command line. Exit if the shell read the `>` of `a->b` as a redirection."""
    if written.endswith("-") and "->" not in written:
        try:
            file = Path("/proc/self/fd/1").readlink()
        except OSError:
            file = Path("b")
        made = f", and made the file {file.name}" if file.is_file() else ""
        site = file.name if made else "b"
        rule = f"{written}: the shell read `>` as a redirection of the output{made}"
        raise bad_input(rule, f"'{written}>{site}' in quotes, or {written}{site}")
    return written


def api_port(open_: bool, port: int | None) -> ApiPort | None:
    """Return the port of the API that `--open` and `--port` ask for, or None."""
    from testbed.api.entry import ApiPort

    return ApiPort(port or 0, open_) if open_ or port is not None else None


def quantity(kind: Any) -> Callable[[str | float], float]:
    """Return the parser of options of a kind from `spec.units`, such as `50mbit` or `110ms`, as in topology files."""
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
