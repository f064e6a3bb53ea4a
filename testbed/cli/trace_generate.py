"""The commands `trace generate`: seeded traces of several kinds."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from testbed.atomic_file import check_new
from testbed.cli.console import BAD_INPUT, fail, out, quantity
from testbed.spec import units
from testbed.trace import generate as generators
from testbed.trace.csv import write_csv
from testbed.trace.read import format_of
from testbed.trace.trace import TraceError

app = typer.Typer(
    no_args_is_help=True, help="Generate a trace from a seed; the first line of its file names the generator."
)

RATE, DURATION = (quantity(kind) for kind in (units.Rate, units.Duration))

Target = Annotated[Path, typer.Argument(metavar="TARGET", help="the CSV file to write")]
Rate = Annotated[float, typer.Option(parser=RATE, metavar="RATE", help="a rate, such as 20mbit")]
Time = Annotated[float, typer.Option(parser=DURATION, metavar="TIME", help="a duration, such as 180s")]
Share = Annotated[float, typer.Option(min=0, help="a share of the mean, such as 0.1")]
Seed = Annotated[int, typer.Option(help="a whole number; the same seed makes the same file")]


def _generate(target: Path, generator: generators.Generator) -> None:
    if format_of(target, "") != "csv":
        raise TraceError(f"{target}: a generated trace is CSV; name it .csv, then use `testbed trace convert`")
    check_new([target])
    trace = generator.trace()
    write_csv(target, trace, [str(generator)])
    out.print(f"{target}: {len(trace.rows)} rows, {trace.duration_s:.6g} s", markup=False)


@app.command()
def uniform(target: Target, low: Rate, high: Rate, seed: Seed, period: Time = 180.0, duration: Time = 1800.0) -> None:
    """Draw the rate uniformly between --low and --high, again every --period (as NetStorm's network)."""
    _generate(target, generators.UniformRedraw(low, high, period, duration, seed))


@app.command()
def walk(
    target: Target,
    mean: Rate,
    seed: Seed,
    spread: Share = 0.1,
    return_: Annotated[
        float,
        typer.Option(
            "--return", parser=DURATION, metavar="TIME", help="the time in which the rate returns to its mean"
        ),
    ] = 20.0,
    step: Time = 1.0,
    duration: Time = 180.0,
) -> None:
    """Let the rate wander about its mean and return to it (Ornstein–Uhlenbeck)."""
    _generate(target, generators.OrnsteinUhlenbeck(mean, spread, return_, step, duration, seed))


@app.command()
def markov(
    target: Target,
    state: Annotated[
        list[float],
        typer.Option(parser=RATE, metavar="RATE", help="the rate of a state, such as 20mbit; once for each state"),
    ],
    seed: Seed,
    dwell: Annotated[
        float | None,
        typer.Option(
            parser=DURATION,
            metavar="TIME",
            help="the mean time in a state, after which any other state follows; or give --next",
        ),
    ] = None,
    next_: Annotated[
        list[str] | None,
        typer.Option(
            "--next",
            metavar="P,P,…",
            help="the probabilities that each state follows this one, such as 0.9,0.1; once for each state",
        ),
    ] = None,
    step: Time = 1.0,
    duration: Time = 180.0,
) -> None:
    """Let the rate jump between states, after a mean time (--dwell) or by a transition matrix (--next)."""
    if (dwell is None) == (next_ is None):
        raise fail(
            BAD_INPUT,
            "markov: give one of --dwell and --next\n    write instead: --dwell 10s, or --next 0.9,0.1 for each state",
        )
    if dwell is not None:
        generator = generators.Markov.dwelling(state, dwell, step, duration, seed)
    else:
        generator = generators.Markov(tuple(state), tuple(map(_odds, next_ or [])), step, duration, seed)
    _generate(target, generator)


def _odds(text: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise TraceError(f"--next {text}: is not a list of probabilities; write for example --next 0.9,0.1") from None


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
    """Let the rate follow the time of day, lowest at its beginning."""
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
    """Interrupt a steady rate: up and down for exponentially distributed times with the means --up and --down."""
    _generate(target, generators.Outages(rate, up, down, duration, seed))
