"""`testbed run`, whole: from an experiment's file to its directory, with the verdict said at the end."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.markup import escape

from testbed.emulation import budget, cleanup, engine
from testbed.emulation.errors import EmulationError
from testbed.emulation.undo import UndoStack
from testbed.run.assignments import check_policy
from testbed.run.conclude import conclude, failed
from testbed.run.directory import RunDirectory
from testbed.run.disk import shortage
from testbed.run.display import Display
from testbed.run.errors import CannotRun, RunFailed
from testbed.run.run import Run
from testbed.run.verdict import host_was_short
from testbed.spec.experiment import Experiment


@dataclass(frozen=True, slots=True)
class Executed:
    """How a run ended: whether training came to its end, the verdict, and where all about it lies."""

    finished: bool
    verdict: str
    directory: Path


#: Makes the page of a run's directory; where it lies.
Publish = Callable[[Path], Path]


def execute(file: Path, overrides: Mapping[str, str], strict: bool, publish: Publish, display: Display) -> Executed:
    """Run the experiment in a file. SpecError for bad input, CannotRun when this machine can't; nothing is left.

    `publish` is called when all else is in the run's directory.
    """
    experiment = Experiment.load(file, overrides)
    check_policy(experiment)
    directory = RunDirectory(experiment.name)
    display.say(f"[bold]{experiment.name}[/] in {directory.path}")
    try:
        if short := shortage([directory.path]):
            raise CannotRun(short)
        return _execute(experiment, directory, display, strict, publish)
    except (EmulationError, FileExistsError) as error:
        failed(directory, _in_full(error))
        raise CannotRun(_in_full(error)) from error
    except BaseException as error:
        failed(directory, _in_full(error) if isinstance(error, Exception) else "the run was interrupted")
        raise
    finally:
        directory.close()


def _execute(
    experiment: Experiment, directory: RunDirectory, display: Display, strict: bool, publish: Publish
) -> Executed:
    try:
        with UndoStack() as stack:
            # Interrupted at the wrong moment, the way back may have missed something; this finds it by its label.
            stack.callback(_take_away, directory.id)
            run = Run(experiment, directory, display)
            outcome = run.execute(strict)
    except RunFailed as error:
        return _failed(directory, display, _in_full(error))
    except OSError as error:  # of a disk, or of the connection to the engine
        short = shortage([directory.path])
        return _failed(directory, display, short or f"this machine failed: {_in_full(error)}")
    with display.step("summary and report"):
        summary = conclude(experiment, directory, outcome)
        if run.fits is not None and run.fits == host_was_short(summary["reasons"]):
            budget.contradict()
        page = publish(directory.path)
    for line in _in_words(summary):
        display.say(f"  {line}")
    color = "green" if summary["verdict"] == "trusted" else "yellow"
    display.say(f"  verdict: [bold {color}]{summary['verdict']}[/]")
    for reason in summary["reasons"]:
        display.say(f"    {escape(reason)}")
    display.say(f"  report: {page}")
    return Executed(finished=True, verdict=summary["verdict"], directory=directory.path)


def _failed(directory: RunDirectory, display: Display, text: str) -> Executed:
    """Say why a run did not come to its end."""
    failed(directory, text)
    display.say(f"[red]failed:[/] {escape(text)}\n  more in {directory.path}/logs")
    return Executed(finished=False, verdict="suspect", directory=directory.path)


def _take_away(network: str) -> None:
    """Whatever there still is of a network. RunFailed when there is no engine to take its containers away."""
    try:
        client = engine.connect()
    except engine.EngineError as error:
        cleanup.clean(None, network)
        raise RunFailed(f"{error} `testbed clean --name {network}` then takes the containers away.") from error
    cleanup.clean(client, network)


def _in_full(error: BaseException) -> str:
    """An error, and what failed after it."""
    return "\n".join([str(error), *getattr(error, "__notes__", ())])


def _in_words(summary: Mapping[str, Any]) -> list[str]:
    training, sync, swaps = summary["training"], summary["sync"], summary["swaps"]
    loss, accuracy = training["final_loss"], training["final_accuracy"]
    learned = [f"loss {loss:.4f}"] if loss is not None else []
    learned += [f"test accuracy {accuracy:.1%}"] if accuracy is not None else []
    seconds = sync["seconds_per_round"]
    ratios = {"lower bound, end to end": sync["ratio_to_lower_bound"], "bound without delays": sync["ratio_to_bound"]}
    told = [f"{ratio:.2f} times the {name}" for name, ratio in ratios.items() if ratio is not None]
    lost = sum(swap["lost_updates"] + swap["duplicated_updates"] for swap in swaps)
    kinds = [swap["kind"] for swap in swaps]
    gap, identical = sync.get("gap"), training["identical_parameters"]
    unit, end = "iteration" if gap else "round", "the workers' parameters DIFFER"
    if identical:
        end = "all workers hold the same bits"
    elif gap and identical is None:
        end = f"no two workers were more than {gap['widest']} apart"
    return [
        "; ".join([f"{training['rounds']} {unit}s in {training['wall_seconds']:.0f} s", *learned, end]),
        f"{unit}: {seconds['p50']:.2f} s at the median, {seconds['p95']:.2f} s at the 95th percentile",
        *(["; ".join(told)] if told else []),
        f"{kinds.count('plan')} plan swaps, {kinds.count('network')} network swaps, {lost} updates lost or doubled",
    ]
