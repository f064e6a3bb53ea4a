"""`testbed trace`: look at trace files, check, convert, import and generate them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from testbed.cli import trace_generate, trace_import
from testbed.cli.console import BAD_INPUT, fail, link_argument, out, quantity
from testbed.spec import units
from testbed.trace.csv import write_csv
from testbed.trace.mahimahi import STEP_S, schedule_of, write_mahimahi
from testbed.trace.read import TraceFile, format_of, read_trace
from testbed.trace.resample import Resampled
from testbed.trace.trace import Trace, TraceError

app = typer.Typer(no_args_is_help=True, help=__doc__)
app.add_typer(trace_generate.app, name="generate")
app.add_typer(trace_import.app, name="import")

STEP = quantity(units.Step)

File = Annotated[Path, typer.Argument(help="a trace: CSV, a packet-delivery file, or iperf3's JSON")]
StepOption = Annotated[float | None, typer.Option(parser=STEP, metavar="TIME", help="of a resampled format: 100ms")]


@app.command()
def show(
    file: File,
    step: StepOption = None,
    png: Annotated[Path | None, typer.Option(help="draw it into this file too")] = None,
) -> None:
    """Show a trace: its facts, and each column over time."""
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
    """Say what is wrong with a trace (exit code 2), or what it amounts to."""
    _print_facts(read_trace(file, step_s=step))


def _print_facts(found: TraceFile) -> None:
    from testbed.report.trace import facts, table

    out.print(*facts(found), sep="\n", markup=False)
    out.print(table(found))


@app.command()
def convert(
    files: Annotated[list[Path], typer.Argument(metavar="[SOURCE] TARGET", help="TARGET: .csv, .up, .down, .mahimahi")],
    step: StepOption = None,
    run: Annotated[Path | None, typer.Option(help="take what a run measured, instead of a SOURCE")] = None,
    link: Annotated[
        str | None, typer.Option(metavar="A->B", help="of the run: this link, in quotes", parser=link_argument)
    ] = None,
) -> None:
    """Write a trace in the format that TARGET's name tells; or what a run measured on a link."""
    if (run is None) != (link is None) or (run and step):
        raise fail(BAD_INPUT, "a run's measurement needs both --run and --link, and takes no --step")
    if len(files) != (1 if run else 2):
        raise fail(BAD_INPUT, f"got {len(files)} files; write SOURCE TARGET, or with --run and --link TARGET alone")
    from testbed.report.measured_trace import measured_in

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
        raise TraceError(f"{target}: iperf3's format is what iperf3 measured, and only read; write .csv, .up or .down")
    if format_ == "csv":
        write_csv(target, trace, comments)
    else:
        schedule = schedule_of(trace)
        write_mahimahi(target, schedule)
        error = Resampled(trace, STEP_S, schedule).error(STEP_S)
        comments += [
            f"{len(schedule.milliseconds)} packets: error of the bytes delivered {error:.2%} in {STEP_S:g} s windows",
            "of its columns, packets hold the rate alone, and rows that lose everything",
        ]
    for line in (str(target), *comments):
        out.print(line, markup=False)
