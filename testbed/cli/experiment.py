"""The verbs that run experiments: `run`, `compare` and `simulate`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from testbed.cli.console import BAD_INPUT, CANNOT, FAILED, INTERRUPTED, err, fail
from testbed.emulation.interrupt import Interrupted, interruptible
from testbed.spec.errors import SpecError

Experiment = Annotated[Path, typer.Argument(help="the experiment file")]
Set = Annotated[list[str], typer.Option("--set", metavar="KEY=VALUE", help="override a field")]
Strict = Annotated[bool, typer.Option("--strict", help="refuse what does not fit; a suspect verdict is 1")]


def register(app: typer.Typer) -> None:
    """Add the verbs."""
    app.command()(run)
    app.command()(compare)
    app.command()(simulate)


def overrides(pairs: list[str]) -> dict[str, str]:
    """`key=value` pairs of --set."""
    for pair in pairs:
        if "=" not in pair or pair.startswith("="):
            raise fail(BAD_INPUT, f"--set {pair}: is not key=value\n    write instead: --set train.rounds=20")
    return dict(pair.split("=", 1) for pair in pairs)


def run(experiment: Experiment, set_: Set = [], strict: Strict = False) -> None:  # noqa: B006
    """Run an experiment: build the network, train, change it as the file says, and judge."""
    from testbed.run.display import Display
    from testbed.run.execute import execute

    changes = overrides(set_)
    with _ended_in_words():
        outcome = execute(experiment, changes, strict, _page, Display())
    if not outcome.finished or outcome.page is None or (strict and outcome.verdict != "trusted"):
        raise typer.Exit(FAILED)


def simulate(
    experiment: Experiment,
    set_: Set = [],  # noqa: B006
    seed: Annotated[
        int | None, typer.Option(min=0, help="of all that is drawn at random; the file's by default")
    ] = None,
    rounds: Annotated[int | None, typer.Option(min=1, help="how many; as the file says by default")] = None,
    gradients: Annotated[bool, typer.Option("--gradients", help="train for real, in one process")] = False,
) -> None:
    """Simulate an experiment: rounds, re-planning and events on simulated time, with the same run directory."""
    from testbed.run.display import Display
    from testbed.simulation.execute import simulate as simulated

    changes = overrides(set_)
    changes |= {"seed": str(seed)} if seed is not None else {}
    changes |= {"train.rounds": str(rounds)} if rounds is not None else {}
    with _ended_in_words():
        outcome = simulated(experiment, changes, gradients, _page, Display())
    if not outcome.finished:
        raise typer.Exit(FAILED)


def compare(
    experiment: Experiment,
    policies: Annotated[str, typer.Option(help="names, commas between; with options: netstorm:roots=1")],
    seeds: Annotated[str, typer.Option(help="whole numbers, commas between")] = "1",
    set_: Set = [],  # noqa: B006
    strict: Strict = False,
    json_: Annotated[bool, typer.Option("--json", help="one JSON object; progress goes to the error output")] = False,
) -> None:
    """Run an experiment under several policies, each with the same seeds and traces, and set them side by side."""
    from testbed.cli.tables import print_comparison
    from testbed.run.compare import Variant
    from testbed.run.compare import compare as run_all
    from testbed.run.display import Display

    changes = overrides(set_)
    try:
        variants = [Variant.parse(text) for text in policies.split(",")]
        numbers = [int(seed) for seed in seeds.split(",")]
    except ValueError as error:
        raise fail(BAD_INPUT, f"{error}\n    write instead: --policies netstorm,mst --seeds 1,2,3") from None
    display = Display(err) if json_ else Display()
    with _ended_in_words():
        compared = run_all(experiment, variants, numbers, changes, strict, display, _page, _comparison)
    if json_:
        print(json.dumps(compared.figures()))
    else:
        print_comparison(compared.figures())
        display.say(f"  side by side: {compared.page}")
    if not compared.finished or (strict and not compared.trusted):
        raise typer.Exit(FAILED)


def _page(run: Path) -> Path:
    """Of a run that is over: what draws it takes a second to load."""
    from testbed.report.page import write_report

    return write_report(run)


def _comparison(runs: Sequence[Path], page: Path) -> Path:
    """Of several."""
    from testbed.report.page import write_comparison

    return write_comparison(runs, page)


@contextmanager
def _ended_in_words() -> Iterator[None]:
    """Signals interrupt what is inside; whatever ends it early is said, with its exit code."""
    from testbed.run.errors import CannotRun

    try:
        with interruptible():
            yield
    except SpecError as error:
        raise fail(BAD_INPUT, error) from None
    except CannotRun as error:
        raise fail(CANNOT, error) from None
    except Interrupted as signal_:
        raise fail(INTERRUPTED, f"interrupted ({signal_}): everything the run made was taken away") from None
