"""The commands `trace import`: traces that others measured, written as CSV."""

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

app = typer.Typer(no_args_is_help=True, help="Import traces that others measured; each is written as CSV, NAME.csv.")

STEP = quantity(units.Step)

Files = Annotated[list[Path], typer.Argument(metavar="FILE…", help="the files to read")]
Folder = Annotated[Path, typer.Option("--out", metavar="FOLDER", help="the folder to write the traces to")]
Window = Annotated[
    float | None,
    typer.Option(
        parser=STEP,
        metavar="TIME",
        help="the time step of a row; default: 1s, or the time of ten samples if that is longer",
    ),
]
Step = Annotated[
    float | None,
    typer.Option(parser=STEP, metavar="TIME", help="the time step of a row; default: iperf3's own interval"),
]

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
    """Import Pensieve's traces: lines of seconds and Mbit/s, at irregular times."""
    _import(files, folder, importing.import_pensieve)


@app.command("5g-csv")
def cellular(files: Files, folder: Folder = HERE) -> None:
    """Import cellular CSV (Timestamp; DL_bitrate, UL_bitrate in kbit/s; PINGAVG in ms) to NAME-down.csv and -up.csv."""
    _import(files, folder, importing.import_cellular)


@app.command("rtt-csv")
def rtt_csv(files: Files, folder: Folder = HERE, step: Window = None) -> None:
    """Import delay and loss from CSV with timestamp_ns and rtt in ms, where -1 is a loss."""
    _import(files, folder, partial(importing.import_rtt_csv, window_s=step))


@app.command()
def ping(files: Files, folder: Folder = HERE, step: Window = None) -> None:
    """Import delay and loss from the output of ping, best with its option -D."""
    _import(files, folder, partial(importing.import_ping, window_s=step))


@app.command()
def iperf3(files: Files, folder: Folder = HERE, step: Step = None) -> None:
    """Import the rate from the output of `iperf3 --json`."""
    _import(files, folder, partial(importing.import_iperf3, step_s=step))


@app.command("with")
def with_(
    form: Annotated[
        str,
        typer.Argument(
            metavar="FORM", help="a Python file such as ./mine.py, or the entry point of an installed package"
        ),
    ],
    files: Files,
    folder: Folder = HERE,
) -> None:
    """Import files of your own format: a function `read(text)` makes each a trace (`testbed new form NAME`)."""
    from testbed.plugins import form_named

    read = form_named(form)
    _import(files, folder, partial(importing.import_text, read=read, form=Path(form).stem))


@app.command()
def pcap(
    files: Files,
    folder: Folder = HERE,
    step: Annotated[float, typer.Option(parser=STEP, metavar="TIME", help="the time step of a row")] = importing.STEP_S,
    flow: Annotated[
        str | None,
        typer.Option(
            metavar="A->B",
            help="count this flow alone: 10.0.0.1:443->10.0.0.2 or *->[2001:db8::2]:443; default: all packets",
        ),
    ] = None,
) -> None:
    """Import the rate of all packets, or of one flow, from a pcap or pcapng capture of Ethernet or raw IP."""
    wanted = None if flow is None else Flow.parse(flow)
    _import(files, folder, partial(importing.import_capture, step_s=step, flow=wanted))
