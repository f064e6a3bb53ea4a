"""The commands `trace show`, `trace check` and `trace convert`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from testbed.atomic_file import check_new
from testbed.cli import trace_generate, trace_import
from testbed.cli.console import BAD_INPUT, fail, link_argument, out, quantity
from testbed.spec import units
from testbed.trace.csv import write_csv
from testbed.trace.mahimahi import STEP_S, schedule_of, write_mahimahi
from testbed.trace.read import TraceFile, format_of, read_trace
from testbed.trace.resample import Resampled
from testbed.trace.trace import Trace, TraceError

app = typer.Typer(no_args_is_help=True, help="Show, check, convert, import or generate trace files.")
app.add_typer(trace_generate.app, name="generate")
app.add_typer(trace_import.app, name="import")

STEP = quantity(units.Step)

File = Annotated[
    Path, typer.Argument(metavar="FILE", help="a trace: CSV, a Mahimahi packet-delivery file, or iperf3's JSON")
]
StepOption = Annotated[
    float | None,
    typer.Option(
        parser=STEP, metavar="TIME", help="the time step that a Mahimahi or iperf3 file is resampled to, such as 100ms"
    ),
]


@app.command()
def show(
    file: File,
    step: StepOption = None,
    png: Annotated[Path | None, typer.Option(metavar="FILE", help="also draw the trace into this PNG file")] = None,
) -> None:
    """Show a trace: its length, its range of values, and each column over time."""
    from testbed.report.trace import save_trace, sketch
    from testbed.trace.csv import columns_of

    found = read_trace(file, step_s=step)
    _print_facts(found)
    for column in columns_of(found.trace):
        out.print("", *sketch(column), sep="\n", markup=False)
    if png:
        save_trace(found.trace, str(file), png)


@app.command()
def check(file: File, step: StepOption = None) -> None:
    """Check a trace: print its summary, or name its fault with exit code 2."""
    _print_facts(read_trace(file, step_s=step))


def _print_facts(found: TraceFile) -> None:
    from testbed.report.trace import facts, table

    out.print(*facts(found), sep="\n", markup=False)
    out.print(table(found))


@app.command()
def convert(
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="[SOURCE] TARGET", help="the trace to read, then the file to write: .csv, .up, .down or .mahimahi"
        ),
    ],
    step: StepOption = None,
    run: Annotated[
        Path | None, typer.Option(metavar="RUN", help="write what this run measured on --link, instead of SOURCE")
    ] = None,
    link: Annotated[
        str | None, typer.Option(metavar="A->B", help="the link of the run, in quotes", parser=link_argument)
    ] = None,
) -> None:
    """Convert a trace to the format of TARGET's ending, or write what a run measured on a link as a trace."""
    if (run is None) != (link is None) or (run and step):
        rule = (
            "--run needs --link" if link is None else "--link needs --run" if run is None else "--run takes no --step"
        )
        raise fail(BAD_INPUT, f"convert: {rule}\n    write instead: --run RUNS/ID --link 'A->B' TARGET")
    if len(files) != (1 if run else 2):
        raise fail(
            BAD_INPUT,
            f"convert: got {len(files)} files\n    write instead: SOURCE TARGET, or TARGET alone with --run and --link",
        )
    from testbed.report.trace import measured_in

    *source, target = files
    if run is not None and link is not None:
        trace, origin = measured_in(run, link)
        comments = [origin]
    else:
        found = read_trace(source[0], step_s=step)
        trace, comments = found.trace, _origin(found)
    _write(target, trace, comments)


def _origin(found: TraceFile) -> list[str]:
    from testbed.report.trace import error_of

    return [f"from {found.path.name} ({found.format})", *([error_of(found.resampled)] if found.resampled else [])]


def _write(target: Path, trace: Trace, comments: list[str]) -> None:
    format_ = format_of(target, "")
    if format_ == "iperf3":
        raise TraceError(f"{target}: iperf3's format can only be read; write .csv, .up or .down")
    check_new([target])
    if format_ == "csv":
        write_csv(target, trace, comments)
    else:
        schedule = schedule_of(trace)
        write_mahimahi(target, schedule)
        error = Resampled(trace, STEP_S, schedule).error(STEP_S)
        comments += [
            f"{len(schedule.milliseconds)} packets; error of the bytes delivered: {error:.2%} in {STEP_S:g} s windows",
            "only the rate is kept, and rows that lose every packet",
        ]
    for line in (str(target), *comments):
        out.print(line, markup=False)
