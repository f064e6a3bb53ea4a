"""`testbed run`, whole: from an experiment's file to its directory, with the verdict said at the end."""

from __future__ import annotations

import errno
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.markup import escape

from testbed.emulation import budget, cleanup, engine
from testbed.emulation.errors import EmulationError
from testbed.emulation.undo import UndoStack, in_full
from testbed.run.assignments import check_policy
from testbed.run.conclude import conclude, failed
from testbed.run.directory import RunDirectory
from testbed.run.disk import shortage
from testbed.run.display import Display
from testbed.run.errors import CannotRun, RunFailed
from testbed.run.program import AnyRun, run_of
from testbed.run.verdict import SIMULATED, host_was_short
from testbed.spec.experiment import Experiment

#: The errors of a disk, or of a user's part of one, that has no room left.
FULL = (errno.ENOSPC, errno.EDQUOT)


@dataclass(frozen=True, slots=True)
class Executed:
    """How a run ended: whether training came to its end, the verdict, and where all about it lies. `page` is None where
    it could not be made."""

    finished: bool
    verdict: str
    directory: Path
    page: Path | None = None


#: Makes the page of a run's directory; where it lies.
Publish = Callable[[Path], Path]


#: Makes what executes an experiment.
MakeRun = Callable[[Experiment, RunDirectory, Display], AnyRun]


def execute(
    file: Path,
    overrides: Mapping[str, str],
    strict: bool,
    publish: Publish,
    display: Display,
    make_run: MakeRun = run_of,
) -> Executed:
    """Run the experiment in a file. SpecError for bad input, CannotRun when this machine can't; nothing is left.

    `publish` is called when all else is in the run's directory.
    """
    experiment = Experiment.load(file, overrides)
    check_policy(experiment)
    try:
        directory = RunDirectory(experiment.name)
    except OSError as error:
        remedy = "make room, or call it where you may write"
        raise CannotRun(f"no directory for the run can be made under runs/: {error.strerror}; {remedy}") from error
    display.say(f"[bold]{experiment.name}[/] in {directory.path}")
    try:
        if short := shortage([directory.path]):
            raise CannotRun(short)
        return _execute(make_run(experiment, directory, display), strict, publish)
    except (EmulationError, FileExistsError) as error:
        failed(directory, in_full(error))
        raise CannotRun(in_full(error)) from error
    except BaseException as error:
        if isinstance(error, OSError) and error.errno in FULL:
            text = f"the disk that {error.filename or directory.path} is on is full ({error.strerror}); make room on it"
            failed(directory, text)
            raise CannotRun(text) from error
        failed(directory, in_full(error) if isinstance(error, Exception) else "the run was interrupted")
        raise
    finally:
        directory.close()


def _execute(run: AnyRun, strict: bool, publish: Publish) -> Executed:
    experiment, directory, display = run.experiment, run.directory, run.display
    try:
        engine.connect()  # where there is none, there is nothing that it would have to take away
        with UndoStack() as stack:
            # Interrupted at the wrong moment, the way back may have missed something; this finds it by its label.
            stack.callback(_take_away, directory.id)
            outcome = run.execute(strict)
    except RunFailed as error:
        return _failed(directory, display, in_full(error))
    except FileExistsError:
        raise  # a network of this name is up
    except OSError as error:  # of a disk, or of the connection to the engine
        short = shortage([directory.path])
        return _failed(directory, display, short or f"this machine failed: {in_full(error)}")
    with display.step("summary and report"):
        summary = conclude(experiment, directory, outcome)
        if run.fits is not None and run.fits == host_was_short(summary["reasons"]):
            budget.contradict()
        page = _published(directory.path, publish, display)
    for line in in_words(summary):
        display.say(f"  {line}")
    color = "green" if summary["verdict"] == "trusted" else "yellow"
    display.say(f"  verdict: [bold {color}]{summary['verdict']}[/]")
    for reason in summary["reasons"]:
        display.say(f"    {escape(reason)}")
    if page is not None:
        display.say(f"  report: {page}")
    return Executed(finished=True, verdict=summary["verdict"], directory=directory.path, page=page)


def _published(directory: Path, publish: Publish, display: Display) -> Path | None:
    """The page; None where it could not be made. That changes nothing about the run, and is told beside its summary."""
    try:
        return publish(directory)
    except Exception as error:
        log = directory / "logs" / "report.log"
        display.say(f"[red]no report:[/] {escape(str(error))}\n  `testbed report {directory}` makes it; more in {log}")
        with suppress(OSError):  # the disk may be full, which the words above then say
            log.write_text(traceback.format_exc())
        return None


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
        cleanup.sweep(None, network)
        raise RunFailed(f"{error} `testbed clean --name {network}` then takes the containers away.") from error
    cleanup.sweep(client, network)


def in_words(summary: Mapping[str, Any]) -> list[str]:
    """What a run came to, for whoever waited for it."""
    if "not_judged" in summary:
        swaps = sum(swap["kind"] == "network" for swap in summary["swaps"])
        took = f"the command ended on all workers after {summary['training']['wall_seconds']:.0f} s"
        return [f"{took}; {swaps} network swaps", *(f"not judged: {what}" for what in summary["not_judged"])]
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
    if summary["verdict"] == SIMULATED and identical is None:
        end = "nothing was trained"
    elif identical:
        end = "all workers hold the same bits"
    elif gap and identical is None:
        end = f"no two workers were more than {gap['widest']} apart"
    return [
        "; ".join([f"{training['rounds']} {unit}s in {training['wall_seconds']:.0f} s", *learned, end]),
        f"{unit}: {seconds['p50']:.2f} s at the median, {seconds['p95']:.2f} s at the 95th percentile",
        *(["; ".join(told)] if told else []),
        f"{kinds.count('plan')} plan swaps, {kinds.count('network')} network swaps, {lost} updates lost or doubled",
    ]
