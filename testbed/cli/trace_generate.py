"""`testbed trace generate`: seeded traces of several kinds."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from testbed.cli.console import BAD_INPUT, fail, out, quantity
from testbed.spec import units
from testbed.trace import generate as generators
from testbed.trace.csv import write_csv
from testbed.trace.read import format_of
from testbed.trace.trace import TraceError

app = typer.Typer(no_args_is_help=True, help="Make a trace; its first line says how.")

RATE, DURATION = (quantity(kind) for kind in (units.Rate, units.Duration))

Target = Annotated[Path, typer.Argument(help="the CSV file to write")]
Rate = Annotated[float, typer.Option(parser=RATE, metavar="RATE", help="such as 20mbit")]
Time = Annotated[float, typer.Option(parser=DURATION, metavar="TIME", help="such as 180s")]
Share = Annotated[float, typer.Option(min=0, help="relative to the mean")]
Seed = Annotated[int, typer.Option(help="the same seed makes the same file")]


def _generate(target: Path, generator: generators.Generator) -> None:
    if format_of(target, "") != "csv":
        raise TraceError(f"{target}: a generated trace is CSV; name it .csv, then convert it")
    trace = generator.trace()
    write_csv(target, trace, [str(generator)])
    out.print(f"{target}: {len(trace.rows)} rows, {trace.duration_s:.6g} s", markup=False)


@app.command()
def uniform(target: Target, low: Rate, high: Rate, seed: Seed, period: Time = 180.0, duration: Time = 1800.0) -> None:
    """A rate drawn uniformly between two, again every period (NetStorm's network)."""
    _generate(target, generators.UniformRedraw(low, high, period, duration, seed))


@app.command()
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


@app.command()
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


@app.command()
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


@app.command()
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
