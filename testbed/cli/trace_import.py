"""`testbed trace import`: other people's traces as CSV of ours."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from testbed.cli.console import out, quantity
from testbed.spec import units
from testbed.trace import importing
from testbed.trace.facts import columns_of
from testbed.trace.forms.flow import Flow
from testbed.trace.importing import ImportedTrace

app = typer.Typer(no_args_is_help=True, help="Make traces of other people's; each is written as CSV, NAME.csv.")

STEP = quantity(units.Step)

Files = Annotated[list[Path], typer.Argument(help="files of this form")]
Folder = Annotated[Path, typer.Option("--out", metavar="FOLDER", help="where to write them")]
Window = Annotated[
    float | None, typer.Option(parser=STEP, metavar="TIME", help="of a row; 1s, or what ten samples take")
]
Step = Annotated[float | None, typer.Option(parser=STEP, metavar="TIME", help="of a row; by default the interval")]

HERE = Path()


def _import(files: list[Path], folder: Path, read: Callable[[Path], list[ImportedTrace]]) -> None:
    found = [each for file in files for each in read(file)]
    targets = importing.write_imported(found, files, folder)
    for target, each in zip(targets, found, strict=True):
        columns = ", ".join(f"{column.name} {column.mean:.4g}" for column in columns_of(each.trace))
        out.print(f"{target}: {len(each.trace.rows)} rows, {each.trace.duration_s:.6g} s; {columns}", markup=False)
        for comment in each.comments:
            out.print(f"    {comment}", markup=False)


@app.command()
def pensieve(files: Files, folder: Folder = HERE) -> None:
    """Lines of seconds and Mbit/s, at irregular times."""
    _import(files, folder, importing.import_pensieve)


@app.command("5g-csv")
def cellular(files: Files, folder: Folder = HERE) -> None:
    """CSV with Timestamp, DL_bitrate and UL_bitrate in kbit/s, PINGAVG in ms: NAME-down.csv and NAME-up.csv."""
    _import(files, folder, importing.import_cellular)


@app.command("rtt-csv")
def rtt_csv(files: Files, folder: Folder = HERE, step: Window = None) -> None:
    """CSV with timestamp_ns and rtt in ms, -1 for a loss: delay and loss."""
    _import(files, folder, partial(importing.import_rtt_csv, window_s=step))


@app.command()
def ping(files: Files, folder: Folder = HERE, step: Window = None) -> None:
    """What ping printed, best with -D: delay and loss."""
    _import(files, folder, partial(importing.import_ping, window_s=step))


@app.command()
def iperf3(files: Files, folder: Folder = HERE, step: Step = None) -> None:
    """What `iperf3 --json` wrote: the rate."""
    _import(files, folder, partial(importing.import_iperf3, step_s=step))


@app.command("with")
def with_(
    form: Annotated[str, typer.Argument(metavar="FORM", help="./mine.py, or an installed package's entry point")],
    files: Files,
    folder: Folder = HERE,
) -> None:
    """Texts of a form of your own: a function `read(text)` makes a trace of each (`testbed new form NAME`)."""
    from testbed.plugins import form_named

    read = form_named(form)
    _import(files, folder, partial(importing.import_text, read=read, form=Path(form).stem))


@app.command()
def pcap(
    files: Files,
    folder: Folder = HERE,
    step: Annotated[float, typer.Option(parser=STEP, metavar="TIME", help="of a row")] = importing.STEP_S,
    flow: Annotated[
        str | None,
        typer.Option(metavar="A->B", help="of this flow alone: 10.0.0.1:443->10.0.0.2, *->[2001:db8::2]:443"),
    ] = None,
) -> None:
    """A capture, pcap or pcapng, of Ethernet or raw IP: the rate of all its packets, or of a flow."""
    wanted = None if flow is None else Flow.parse(flow)
    _import(files, folder, partial(importing.import_capture, step_s=step, flow=wanted))
