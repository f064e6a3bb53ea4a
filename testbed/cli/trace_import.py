"""`testbed trace import`: other people's traces as CSV of ours."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from testbed.cli.console import out, quantity
from testbed.spec import units
from testbed.trace.csv import columns_of
from testbed.trace.forms import FORMS
from testbed.trace.forms.pcap import STEP_S, Flow, import_capture
from testbed.trace.importing import Form, ImportedTrace, write_imported

app = typer.Typer(no_args_is_help=True, help="Make traces of other people's; each is written as CSV, NAME.csv.")

STEP = quantity(units.Step)

Files = Annotated[list[Path], typer.Argument(help="files of this form")]
Folder = Annotated[Path, typer.Option("--out", metavar="FOLDER", help="where to write them")]

HERE = Path()


def _import(files: list[Path], folder: Path, read: Callable[[Path], list[ImportedTrace]]) -> None:
    found = [each for file in files for each in read(file)]
    targets = write_imported(found, folder)
    for target, each in zip(targets, found, strict=True):
        columns = ", ".join(f"{column.name} {column.mean:.4g}" for column in columns_of(each.trace))
        out.print(f"{target}: {len(each.trace.rows)} rows, {each.trace.duration_s:.6g} s; {columns}", markup=False)
        for comment in each.comments:
            out.print(f"    {comment}", markup=False)


def _add_command(form: Form) -> None:
    """Add the command that imports files of a form."""
    option = typer.Option(parser=STEP, metavar="TIME", help=form.step)

    def plain(files: Files, folder: Folder = HERE) -> None:
        _import(files, folder, form.import_file)

    def in_steps(files: Files, folder: Folder = HERE, step: float | None = None) -> None:
        _import(files, folder, partial(form.import_file, step_s=step))

    in_steps.__annotations__["step"] = Annotated[float | None, option]
    app.command(form.name, help=form.help)(in_steps if form.step else plain)


for _form in FORMS.values():
    _add_command(_form)


@app.command("with")
def with_(
    form: Annotated[str, typer.Argument(metavar="FORM", help="./mine.py, or an installed package's entry point")],
    files: Files,
    folder: Folder = HERE,
) -> None:
    """Import texts of a form of your own: its function `read(text)` makes a trace of each (`testbed new form NAME`)."""
    from testbed.plugins import form_named

    read = form_named(form)
    mine = Form(Path(form).stem, "", lambda text, _: [ImportedTrace(read(text))])
    _import(files, folder, mine.import_file)


@app.command()
def pcap(
    files: Files,
    folder: Folder = HERE,
    step: Annotated[float, typer.Option(parser=STEP, metavar="TIME", help="of a row")] = STEP_S,
    flow: Annotated[
        str | None,
        typer.Option(metavar="A->B", help="of this flow alone: 10.0.0.1:443->10.0.0.2, *->[2001:db8::2]:443"),
    ] = None,
) -> None:
    """Import a capture, pcap or pcapng, of Ethernet or raw IP: the rate of all its packets, or of a flow."""
    wanted = None if flow is None else Flow.parse(flow)
    _import(files, folder, partial(import_capture, step_s=step, flow=wanted))
