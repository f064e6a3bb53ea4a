"""`testbed simulate`: from an experiment's file to a run's directory, as `testbed run` leaves one."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from math import inf
from pathlib import Path

from rich.markup import escape

from testbed.emulation.errors import EmulationError
from testbed.emulation.interrupt import INTERRUPTS, Interrupted
from testbed.emulation.network.routing import Routes
from testbed.run.assignments import check_policy
from testbed.run.conclusion.conclude import conclude, failed
from testbed.run.conclusion.verdict import SIMULATED
from testbed.run.directory import RunDirectory
from testbed.run.errors import CannotRun, RunFailed
from testbed.run.execute import (
    Executed,
    Publish,
    announced,
    is_of_full_disk,
    published,
    published_failure,
    reason_of,
)
from testbed.run.terminal.display import Display
from testbed.run.training import Outcome
from testbed.simulation.environment import Environment, EventSchedule
from testbed.simulation.recorder import RunRecorder
from testbed.simulation.round_simulation import simulate_rounds
from testbed.spec.errors import Fault, SpecError
from testbed.spec.experiment import Experiment


def simulate(file: Path, overrides: Mapping[str, str], gradients: bool, publish: Publish, display: Display) -> Executed:
    """Simulate the experiment in a file. With `gradients` members learn for real.

    `publish` makes the report of a run in a directory, also of one that failed or was interrupted.

    Raises:
        SpecError: the file is not valid, or has something that is not simulated.
        CannotRun: data or a GPU is missing, or no directory can be made.
        RunFailed: the run's directory was removed meanwhile.
    """
    experiment = Experiment.load(file, overrides)
    check_supported(experiment, gradients)
    routes = Routes.over(experiment.topology)
    check_policy(experiment, routes)
    directory = RunDirectory(experiment.name)
    try:
        display.say(f"[bold]{experiment.name}[/] in {directory.path}")
        outcome = train(experiment, directory, display, gradients, routes)
        with display.step("summary and report"):
            summary = conclude(experiment, directory, outcome)
            page = published(directory.path, publish, display)
    except RunFailed as error:
        failed(directory, str(error))
        display.say(f"[red]failed:[/] {escape(str(error))}")
        page = published_failure(directory, publish, display)
        return Executed(finished=False, verdict="suspect", directory=directory.path, page=page)
    except EmulationError as error:  # data that was not prepared, or no GPU
        failed(directory, str(error))
        raise CannotRun(str(error)) from error
    except INTERRUPTS as interrupt:
        failed(directory, "the simulation was interrupted")
        page = published(directory.path, publish, display)
        if isinstance(interrupt, Interrupted):
            interrupt.records, interrupt.page = directory.path, page
        raise
    except BaseException as error:
        if isinstance(error, FileNotFoundError) and not directory.path.is_dir():
            raise RunFailed(f"{directory.path} is gone: it was removed while the simulation went on") from error
        if not (is_of_full_disk(error) and directory.remove_if_empty()):
            failed(directory, reason_of(error))
        raise
    finally:
        directory.close()
    return announced(directory.path, summary, page, display)


def check_supported(experiment: Experiment, gradients: bool) -> None:
    """Check that an experiment can be simulated, where with `gradients` members learn for real.

    Raises:
        SpecError: it has something that cannot be simulated; names each such field.
    """
    spec = experiment.spec
    if spec.program is not None:
        raise SpecError(experiment.file, [Fault("train.command", "is not simulated", "a `model`, or `testbed run`")])
    faults = [
        Fault(f"events.{number}.{name}", "is not simulated", "leave it out, or `testbed run`")
        for number, event in enumerate(spec.events)
        for name in ("kill", "graph")
        if getattr(event, name) is not None
    ]
    if getattr(spec.sync.own, "powersgd_rank", None) is not None and not gradients:
        rule = "the bytes that it sends depend on the model's matrices, which only members that learn have"
        faults.append(Fault("sync.powersgd_rank", rule, "no `powersgd_rank`, or `--gradients`"))
    if spec.elastic is not None:
        faults.append(Fault("elastic", "nobody is lost in a simulation", "leave it out, or `testbed run`"))
    if not spec.compute.step_time:
        rule = "without it a simulation does not know how long members compute"
        faults.append(Fault("compute.step_time", rule, "a duration, such as 60ms"))
    if faults:
        raise SpecError(experiment.file, faults)


def train(
    experiment: Experiment,
    directory: RunDirectory,
    display: Display,
    gradients: bool,
    routes: Routes | None = None,
    until_s: float = inf,
) -> Outcome:
    """Simulate a training, with its records in a run's directory. With `gradients` members learn for real.

    `routes` are the network's at the start, if they are known already. The training is cut off `until_s` seconds after
    it began; members then say no goodbye, as in a run that is interrupted.

    Returns:
        The outcome, as of a run whose links were not measured from outside.

    Raises:
        RunFailed: a round cannot end.
    """
    environment = Environment.of(experiment, directory.path, routes or Routes.over(experiment.topology))
    recorder = RunRecorder(directory, display, environment)
    run = simulate_rounds
    if experiment.spec.sync.scheme.exchange == "gossip":
        # Loads PyTorch, which rounds without gradients need not.
        from testbed.simulation.gossip_simulation import simulate_gossip

        run = simulate_gossip
    with closing(environment.controller), display.live(experiment.spec.own_train.rounds):
        schedule = EventSchedule(experiment, environment, recorder.record_event)
        ended_s = run(experiment, environment, schedule, recorder, gradients, until_s)
    recorder.end(ended_s)
    began_s = environment.queue.clocks.zero_s
    return Outcome(
        fidelity={},
        backend=SIMULATED,
        training_started_s=began_s,
        training_ended_s=began_s + ended_s,
        lateness={},
        rate_errors={},
        status=environment.controller.status(),
        network_swaps=schedule.swaps,
        missed_events=schedule.pending,
    )
