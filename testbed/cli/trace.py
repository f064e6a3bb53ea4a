"""`testbed trace`: look at trace files, check, convert and generate them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from testbed.cli.console import BAD_INPUT, fail, out, quantity
from testbed.spec import units
from testbed.trace import generate as generators
from testbed.trace.csv import write_csv
from testbed.trace.mahimahi import STEP_S, schedule_of, write_mahimahi
from testbed.trace.read import TraceFile, format_of, read_trace
from testbed.trace.resample import Resampled
from testbed.trace.trace import Trace, TraceError

app = typer.Typer(no_args_is_help=True, help=__doc__)
generate = typer.Typer(no_args_is_help=True, help="Make a trace; its first line says how.")
app.add_typer(generate, name="generate")

RATE, DURATION, STEP = (quantity(kind) for kind in (units.Rate, units.Duration, units.Step))

File = Annotated[Path, typer.Argument(help="a trace: CSV, a packet-delivery file, or iperf3's JSON")]
Target = Annotated[Path, typer.Argument(help="the CSV file to write")]
StepOption = Annotated[float | None, typer.Option(parser=STEP, metavar="TIME", help="of a resampled format: 100ms")]
Rate = Annotated[float, typer.Option(parser=RATE, metavar="RATE", help="such as 20mbit")]
Time = Annotated[float, typer.Option(parser=DURATION, metavar="TIME", help="such as 180s")]
Share = Annotated[float, typer.Option(min=0, help="relative to the mean")]
Seed = Annotated[int, typer.Option(help="the same seed makes the same file")]


@contextmanager
def refusing() -> Iterator[None]:
    """What is wrong with a file, in words and as exit code 2."""
    try:
        yield
    except (TraceError, OSError) as error:  # OSError: a target that cannot be written
        raise fail(BAD_INPUT, error) from None


@app.command()
def show(
    file: File,
    step: StepOption = None,
    png: Annotated[Path | None, typer.Option(help="draw it into this file too")] = None,
) -> None:
    """Show a trace: its facts, and each column over time."""
    from testbed.report.figures.trace import save_trace
    from testbed.report.trace import sketch
    from testbed.trace.facts import columns_of

    with refusing():
        found = read_trace(file, step_s=step)
        _print_facts(found)
        for column in columns_of(found.trace):
            out.print("", *sketch(column), sep="\n", markup=False)
        if png:
            save_trace(found.trace, str(file), png)


@app.command()
def check(file: File, step: StepOption = None) -> None:
    """Say what is wrong with a trace (exit code 2), or what it amounts to."""
    with refusing():
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
    link: Annotated[str | None, typer.Option(metavar="A->B", help="of the run: this link")] = None,
) -> None:
    """Write a trace in the format that TARGET's name tells; or what a run measured on a link."""
    if (run is None) != (link is None) or (run and step):
        raise fail(BAD_INPUT, "a run's measurement needs both --run and --link, and takes no --step")
    if len(files) != (1 if run else 2):
        raise fail(BAD_INPUT, f"got {len(files)} files; write SOURCE TARGET, or with --run and --link TARGET alone")
    *source, target = files
    with refusing():
        if run is not None and link is not None:
            trace, comments = _measured(run, link)
        else:
            found = read_trace(source[0], step_s=step)
            trace, comments = found.trace, _origin(found)
        _write(target, trace, comments)


def _origin(found: TraceFile) -> list[str]:
    from testbed.report.trace import error_of

    return [f"from {found.path.name} ({found.format})", *([error_of(found.resampled)] if found.resampled else [])]


def _measured(run: Path, link: str) -> tuple[Trace, list[str]]:
    from testbed.report.measured import measured_trace
    from testbed.report.record import NotARun, RunRecord

    try:
        record = RunRecord.read(run)
    except NotARun as error:
        raise TraceError(str(error)) from None
    scale = record.manifest.get("scale", 1)
    return measured_trace(record, link), [f"throughput of {link} while backlogged in run {record.id}, scale {scale}"]


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


def _generate(target: Path, generator: generators.Generator) -> None:
    with refusing():
        if format_of(target, "") != "csv":
            raise TraceError(f"{target}: a generated trace is CSV; name it .csv, then convert it")
        trace = generator.trace()
        write_csv(target, trace, [str(generator)])
        out.print(f"{target}: {len(trace.rows)} rows, {trace.duration_s:.6g} s", markup=False)


@generate.command()
def uniform(target: Target, low: Rate, high: Rate, seed: Seed, period: Time = 180.0, duration: Time = 1800.0) -> None:
    """A rate drawn uniformly between two, again every period (NetStorm's network)."""
    _generate(target, generators.UniformRedraw(low, high, period, duration, seed))


@generate.command()
def walk(
    target: Target,
    mean: Rate,
    seed: Seed,
    spread: Share = 0.1,
    return_: Annotated[float, typer.Option("--return", parser=DURATION, metavar="TIME", help="time to return")] = 20.0,
    step: Time = 1.0,
    duration: Time = 180.0,
) -> None:
    """A rate that wanders about its mean and returns to it (Ornstein–Uhlenbeck)."""
    _generate(target, generators.OrnsteinUhlenbeck(mean, spread, return_, step, duration, seed))


@generate.command()
def markov(
    target: Target,
    state: Annotated[list[float], typer.Option(parser=RATE, metavar="RATE", help="a state's rate; once for each")],
    seed: Seed,
    dwell: Annotated[float | None, typer.Option(parser=DURATION, metavar="TIME", help="mean time in a state")] = None,
    next_: Annotated[
        list[str] | None,
        typer.Option("--next", metavar="P,P,…", help="of each state in turn: what follows, how likely"),
    ] = None,
    step: Time = 1.0,
    duration: Time = 180.0,
) -> None:
    """A rate that jumps between states: any other after a mean dwell, or by a transition matrix."""
    if (dwell is None) == (next_ is None):
        raise fail(BAD_INPUT, "a chain needs --dwell TIME, or --next P,P,… for each state")
    with refusing():
        if dwell is not None:
            generator = generators.Markov.dwelling(state, dwell, step, duration, seed)
        else:
            generator = generators.Markov(tuple(state), tuple(map(_odds, next_ or [])), step, duration, seed)
    _generate(target, generator)


def _odds(text: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise TraceError(f"--next {text}: is not probabilities; write such as --next 0.9,0.1") from None


@generate.command()
def diurnal(
    target: Target,
    mean: Rate,
    seed: Seed,
    swing: Share = 0.5,
    noise: Share = 0.05,
    day: Time = 86_400.0,
    step: Time = 60.0,
    duration: Time = 86_400.0,
) -> None:
    """A rate that follows the day, least at its beginning."""
    _generate(target, generators.Diurnal(mean, swing, noise, day, step, duration, seed))


@generate.command()
def outages(
    target: Target,
    rate: Rate,
    seed: Seed,
    up: Time = 60.0,
    down: Time = 5.0,
    duration: Time = 600.0,
) -> None:
    """A steady rate that breaks off: up and down for exponential times with these means."""
    _generate(target, generators.Outages(rate, up, down, duration, seed))
