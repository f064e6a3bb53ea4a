"""`testbed run`: from an experiment's file to a run's directory, with the verdict printed at the end."""

from __future__ import annotations

import errno
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

from rich.markup import escape

from testbed.emulation.containers.engine import ENGINE_ERRORS, explained
from testbed.emulation.errors import EmulationError
from testbed.emulation.interrupt import INTERRUPTS, Interrupted
from testbed.errors import TOO_MANY_OPEN, ending_of, in_full
from testbed.run.assignments import check_policy
from testbed.run.conclusion.conclude import conclude, failed
from testbed.run.conclusion.summary import summary_lines
from testbed.run.directory import RunDirectory
from testbed.run.errors import CannotRun, RunFailed
from testbed.run.guards import removed_at_end
from testbed.run.live_run import listen_for_page
from testbed.run.measured_network import recheck_budget
from testbed.run.programs.run import run_of
from testbed.run.run import Execution
from testbed.run.terminal.display import Display, OutputClosedError
from testbed.run.watchdog import DISK_OF, HOST, shortage
from testbed.spec.errors import SpecError
from testbed.spec.experiment import Experiment

#: The errors of a full disk, and of a user's exhausted quota.
FULL = (errno.ENOSPC, errno.EDQUOT)


def is_of_full_disk(error: BaseException) -> TypeGuard[OSError]:
    """Return whether an error is that of a full disk or a used-up quota."""
    return isinstance(error, OSError) and error.errno in FULL


def reason_of(error: BaseException) -> str:
    """Return why a run ended by an error: the error's text, or its kind if it has no text."""
    return in_full(error) or type(error).__name__


@dataclass(frozen=True, slots=True)
class Executed:
    """An experiment that was run: whether training finished, the verdict, and the run's directory."""

    finished: bool
    verdict: str
    directory: Path
    #: The report; None if it could not be made.
    page: Path | None = None


#: Makes the report of a run's directory, and returns its path.
Publish = Callable[[Path], Path]

#: Makes the execution of an experiment.
MakeRun = Callable[[Experiment, RunDirectory, Display], Execution]


def execute(
    file: Path,
    overrides: Mapping[str, str],
    strict: bool,
    publish: Publish,
    display: Display,
    make_run: MakeRun = run_of,
) -> Executed:
    """Run the experiment in a file, with `overrides` of its fields by dotted names.

    The network and the containers are removed, also after an exception. `strict` refuses an experiment that exceeds the
    host's budget. `publish` makes the report, once all else is in the run's directory.

    Raises:
        SpecError: The input is wrong.
        CannotRun: This machine can't run the experiment.
    """
    experiment = Experiment.load(file, overrides)
    check_policy(experiment)
    return execute_experiment(experiment, experiment.name, strict, publish, display, make_run)


def execute_experiment(
    experiment: Experiment, title: str, strict: bool, publish: Publish, display: Display, make_run: MakeRun
) -> Executed:
    """Run an experiment that was read already, as `execute` does; the terminal shows its `title` first.

    Raises:
        SpecError: The input is wrong. If nothing was written by then, the run's directory is removed.
        CannotRun: The machine can't run the experiment, the page's port is taken, or the engine, the network or the
            disk failed before the programs started. A later failure ends the run, and `finished` is False.
        OutputClosedError: The program that reads the output has ended.
    """
    listen_for_page(display)
    directory = RunDirectory(experiment.name)
    try:
        try:
            display.say(f"[bold]{title}[/] in {directory.path}")
            if short := shortage([directory.path]):
                raise CannotRun(short)
            return _execute(make_run(experiment, directory, display), strict, publish)
        except INTERRUPTS:
            raise
        except (EmulationError, FileExistsError) as error:
            return _broken(directory, display, publish, in_full(error), error)
        except BaseException as error:
            if isinstance(error, FileNotFoundError) and not directory.path.is_dir():
                text = f"{directory.path} is gone: it was removed while the run went on"
                return _broken(directory, display, publish, text, error)
            if is_of_full_disk(error):
                disk = error.filename or directory.path
                text = f"the disk that {disk} is on is full ({error.strerror}); make room on it"
                return _broken(directory, display, publish, text, error)
            if not (isinstance(error, SpecError) and directory.remove_if_empty()):
                failed(directory, reason_of(error))
            raise
    except INTERRUPTS as interrupt:
        failed(directory, "; ".join(("the run was interrupted", *getattr(interrupt, "__notes__", ()))))
        page = published(directory.path, publish, display)
        if isinstance(interrupt, Interrupted):
            interrupt.records, interrupt.page = directory.path, page
        raise
    finally:
        directory.close()


def _execute(run: Execution, strict: bool, publish: Publish) -> Executed:
    experiment, directory, display = run.experiment, run.directory, run.display
    program = experiment.spec.program
    try:
        with removed_at_end(directory.id, containers=program is None or not program.on_host):
            outcome = run.execute(strict)
    except RunFailed as error:
        text = in_full(error)
        # The first part to fail may not have named the full disk.
        short = None if DISK_OF in text else shortage([directory.path])
        if short and short not in text:
            text = f"{short}; {text}"
        if DISK_OF in text or error.rule == HOST:
            raise CannotRun(text) from error
        return _failed(directory, display, publish, text)
    except (FileExistsError, OutputClosedError):  # FileExistsError: a network of this name is up
        raise
    except ENGINE_ERRORS as error:
        raise explained(error) from error
    except OSError as error:
        if error.errno in TOO_MANY_OPEN:
            raise CannotRun(ending_of(error)[1]) from error
        raise CannotRun(shortage([directory.path]) or f"this machine failed: {in_full(error)}") from error
    with display.step("summary and report"):
        summary = conclude(experiment, directory, outcome)
        recheck_budget(run.fits, summary["reasons"])
        page = published(directory.path, publish, display)
    return announced(directory.path, summary, page, display)


def announced(directory: Path, summary: Mapping[str, Any], page: Path | None, display: Display) -> Executed:
    """Print the figures, the verdict and the report of a run that finished, and return its result."""
    for line in summary_lines(summary):
        display.say(f"  {line}")
    color = {"trusted": " green", "suspect": " yellow"}.get(summary["verdict"], "")
    display.say(f"  verdict: [bold{color}]{summary['verdict']}[/]")
    for reason in (*summary["reasons"], *summary["notes"]):
        display.say(f"    {escape(reason)}")
    if page is not None:
        display.say(f"  report: {page}")
    return Executed(finished=True, verdict=summary["verdict"], directory=directory, page=page)


def published(directory: Path, publish: Publish, display: Display) -> Path | None:
    """Make the report and return its path, or print why it could not be made and return None."""
    try:
        return publish(directory)
    except Exception as error:
        log = directory / "logs" / "report.log"
        display.say(f"[red]no report:[/] {escape(str(error))}")
        display.say(f"  `testbed report {directory}` tries again; the traceback is in {log}")
        with suppress(OSError):  # the disk may be full; then the line above says so
            log.write_text(traceback.format_exc())
        return None


def _broken(directory: RunDirectory, display: Display, publish: Publish, text: str, error: BaseException) -> Executed:
    """Write why the machine broke. If the programs had started, the run failed; otherwise, raise CannotRun.

    If the run's directory was removed, nothing says whether they had started: the run failed then, too.

    Raises:
        CannotRun: No program was started.
    """
    if not directory.path.exists() or "training_started_s" in (directory.read_whole("manifest.json") or {}):
        return _failed(directory, display, publish, text)
    full = DISK_OF in text or is_of_full_disk(error)
    if not (full and directory.remove_if_empty()):
        failed(directory, text)
    raise CannotRun(text) from error


def _failed(directory: RunDirectory, display: Display, publish: Publish, text: str) -> Executed:
    """Write and print why a run did not finish, and make its report, except on a full disk."""
    failed(directory, text)
    display.say(f"[red]failed:[/] {escape(text)}\n  the logs are in {directory.path}/logs")
    page = published_failure(directory, publish, display)
    return Executed(finished=False, verdict="suspect", directory=directory.path, page=page)


def published_failure(directory: RunDirectory, publish: Publish, display: Display) -> Path | None:
    """Make the report of a run that failed, and print and return its path.

    Return None where there is no report: if it could not be made, on a full disk, or of a run without records.
    """
    if "spec" not in (directory.read_whole("manifest.json") or {}) or shortage([directory.path]):
        return None
    page = published(directory.path, publish, display)
    if page is not None:
        display.say(f"  report: {page}")
    return page
