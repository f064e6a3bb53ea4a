"""`testbed simulate`, whole: from an experiment's file to a run's directory, as `testbed run` leaves one."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from rich.markup import escape

from testbed.emulation.errors import EmulationError
from testbed.emulation.interrupt import Interrupted
from testbed.emulation.network.routing import Routes
from testbed.run.assignments import check_policy
from testbed.run.conclusion.conclude import conclude, failed
from testbed.run.conclusion.words import in_words
from testbed.run.directory import RunDirectory
from testbed.run.errors import CannotRun, RunFailed
from testbed.run.execute import Executed, Publish
from testbed.run.terminal.display import Display
from testbed.simulation.able import check_able
from testbed.simulation.training import train
from testbed.spec.experiment import Experiment


def simulate(file: Path, overrides: Mapping[str, str], gradients: bool, publish: Publish, display: Display) -> Executed:
    """Simulate the experiment in a file; with `gradients` its members learn for real. SpecError for bad input, also for
    what is not simulated, CannotRun where data is missing or no directory can be made."""
    experiment = Experiment.load(file, overrides)
    check_able(experiment, gradients)
    routes = Routes.over(experiment.topology)
    check_policy(experiment, routes)
    directory = RunDirectory(experiment.name)
    display.say(f"[bold]{experiment.name}[/] in {directory.path}")
    try:
        outcome = train(experiment, directory, display, gradients, routes)
        with display.step("summary and report"):
            summary = conclude(experiment, directory, outcome)
            page = publish(directory.path)
    except RunFailed as error:
        failed(directory, str(error))
        display.say(f"[red]failed:[/] {escape(str(error))}")
        return Executed(finished=False, verdict="suspect", directory=directory.path)
    except EmulationError as error:  # data that was not prepared
        failed(directory, str(error))
        raise CannotRun(str(error)) from error
    except Interrupted as signal_:
        failed(directory, "the simulation was interrupted")
        signal_.records = directory.path
        raise
    except BaseException as error:
        failed(directory, str(error))
        raise
    finally:
        directory.close()
    for line in in_words(summary):
        display.say(f"  {line}")
    display.say(f"  verdict: [bold]{summary['verdict']}[/]")
    for reason in (*summary["reasons"], *summary["notes"]):
        display.say(f"    {escape(reason)}")
    display.say(f"  report: {page}")
    return Executed(finished=True, verdict=summary["verdict"], directory=directory.path, page=page)
