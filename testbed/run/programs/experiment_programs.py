"""The programs of an experiment whose command trains: their containers, ranks, output and figures."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import count
from typing import Any, Self

import docker

from testbed.emulation import label
from testbed.emulation.containers.fleet import ProgramContainers
from testbed.emulation.containers.limits import ScratchSpace
from testbed.emulation.process import ProcessIdentity
from testbed.emulation.testbed import Testbed
from testbed.launch import BadCommand, LaunchFailed
from testbed.launch.program import ContainerStarter, HostStarter, Starter
from testbed.launch.programs import Programs
from testbed.launch.ranks import Peer, alone, ranks_of
from testbed.launch.result_files import CopiedFiles, clear_results, copy_results, describe_copied
from testbed.launch.working_folder import make_writable
from testbed.link import LinkState
from testbed.run.directory import RunDirectory
from testbed.run.errors import RunFailed
from testbed.run.guards import UndoStack
from testbed.run.programs.program_controller import ProgramController
from testbed.run.terminal.display import Display
from testbed.spec.errors import Fault, SpecError
from testbed.spec.experiment import Experiment
from testbed.telemetry.printed_metrics import Figures, figures_in
from testbed.telemetry.tensorboard import EVENTS, read_figures


def check_command(experiment: Experiment) -> None:
    """Raise SpecError if the command would make each worker train alone."""
    program = experiment.spec.program
    assert program is not None
    words = [] if isinstance(program.command, dict) else program.command
    workers = list(program.commands(experiment.topology))
    if len(workers) > 1 and (option := alone(words)):
        rule = f"torchrun {option} starts a separate training on each of the {len(workers)} workers"
        remedy = f"torchrun without {option}, or {workers[0]} alone in `workers`"
        raise SpecError(experiment.file, [Fault("train.command", rule, remedy)])


#: The file of the figures that programs printed or logged.
CURVES = "curves.jsonl"

#: The most records of figures that the page of a running command shows: some 200 KB of JSON.
MOST_SHOWN = 2000


class ProgramFigures:
    """Collects the figures that programs print or log, in the run's directory."""

    def __init__(self, directory: RunDirectory) -> None:
        self._directory = directory
        #: The last value of each figure, whichever program printed it.
        self.newest: dict[str, float] = {}
        self._records: deque[tuple[int, Mapping[str, Any]]] = deque(maxlen=MOST_SHOWN)
        self._numbers = count(1)
        #: Program and names of figures -> the last recorded state of the progress bar with these figures.
        self._bars: dict[tuple[str, ...], Figures] = {}

    @property
    def curves(self) -> dict[str, Mapping[str, Any]]:
        """The last MOST_SHOWN records by number, for the page."""
        return {str(number): record for number, record in list(self._records)}

    def hear(self, program: str, line: str) -> None:
        """Record the figures in a line that a program printed, if it has any.

        A progress bar that is drawn again with the same figures is not recorded again.
        """
        figures = figures_in(line)
        if figures is None or (figures.count is not None and self._is_redrawn(program, figures)):
            return
        self._keep(program, figures)

    def _is_redrawn(self, program: str, bar: Figures) -> bool:
        """Return whether a progress bar shows the figures that were recorded; if not, note it as recorded.

        A loop may set the figures before it moves the bar, or after: each value is drawn at two counts in a row. The
        bars of several epochs have the same counts.
        """
        key = (program, *bar.values)
        last = self._bars.get(key)
        if last is not None and bar.values == last.values and (bar.count or 0) - (last.count or 0) in (0, 1):
            return True
        self._bars[key] = bar
        return False

    def take(self, worker: str, container: ProcessIdentity) -> CopiedFiles:
        """Copy the files that a worker's programs left, record the figures in them, and return the copied files."""
        target = self._directory.path / "out" / worker
        kept = copy_results(container, target)
        for file in sorted(file for file in target.rglob(EVENTS) if file.is_file()):
            for figures in read_figures(file):
                self._keep(worker, figures)
        return kept

    def _keep(self, name: str, figures: Figures) -> None:
        at_s = time.time() if figures.at_s is None else figures.at_s
        record: Mapping[str, Any] = {"at_s": at_s, "program": name, "step": figures.step, "values": figures.values}
        self._directory.append(CURVES, record)
        self._records.append((next(self._numbers), record))
        known = {name: value for name, value in figures.values.items() if value is not None}
        self.newest = {**self.newest, **known}  # a new dict, since other threads read the old one


@dataclass(frozen=True, slots=True)
class ProgramNetwork:
    """A network whose workers run a command: a run's own, or one that is up."""

    name: str
    #: Worker -> its IPv4 address.
    addresses: Mapping[str, str]
    #: Worker -> the process that holds its network namespace, which is the first of its container.
    holders: Mapping[str, ProcessIdentity]
    #: The links' states; None for the declared ones.
    states: Mapping[str, LinkState] | None = None
    #: Seconds for which traces have been replayed.
    elapsed_s: float = 0.0

    @classmethod
    def of(cls, testbed: Testbed) -> Self:
        """Return the network of a testbed with running workers."""
        network = testbed.network
        workers = network.topology.workers
        return cls(
            testbed.name,
            {worker.name: network.address(worker) for worker in workers},
            {worker.name: network.container(worker.name).holder for worker in workers},
        )

    @classmethod
    def standing(cls, status: Mapping[str, Any]) -> Self:
        """Return the network with this status, which is up."""
        hosts = {name: host for name, host in status["hosts"].items() if host["kind"] == "worker"}
        return cls(
            status["name"],
            {name: host["address"] for name, host in hosts.items()},
            {name: ProcessIdentity(host["pid"], host["start_ticks"]) for name, host in hosts.items()},
            {name: LinkState(at["rate_bps"], at["delay_s"], up=at["up"]) for name, at in status["links"].items()},
            status["replay"]["elapsed_s"],
        )


class ExperimentPrograms:
    """The command of an experiment on a network's workers. The caller of `start` also calls `end`.

    Attributes:
        controller: The controller of the backend `wan` or of a scheme, or None.
        figures: Collects the figures that the programs print.

    Without a Docker client, the command runs on the host. The display shows each line that a program prints.
    """

    def __init__(
        self,
        experiment: Experiment,
        network: ProgramNetwork,
        client: docker.DockerClient | None,
        directory: RunDirectory,
        display: Display,
    ) -> None:
        program = experiment.spec.program
        assert program is not None
        self._file = experiment.file
        self._display = display
        self.figures = ProgramFigures(directory)
        self._controller_context = ExitStack()
        commands = program.commands(experiment.topology)
        sites = {worker.name: worker.site for worker in experiment.topology.workers}
        peers = [Peer(name, sites[name], network.addresses[name]) for name in commands]
        self._ranks = [
            replace(rank, environment=rank.environment | program.environment)
            for rank in ranks_of(commands, peers, program.nproc)
        ]
        #: Worker -> its container's first process; empty if the command runs on the host.
        self._containers = {} if program.on_host else {name: network.holders[name] for name in commands}
        self._kept: dict[str, CopiedFiles] = {}
        self._out = directory.path / "out"
        self.controller: ProgramController | None = None
        if program.planned:
            self.controller = ProgramController(
                experiment.topology,
                network.states,
                self._ranks,
                label.state_folder(network.name),
                directory.path,
                program.planned,
                program.codec(experiment.file.parent),
                network.elapsed_s,
            )
            self._ranks = [self.controller.with_environment(rank, program.on_host) for rank in self._ranks]
        starter: Starter
        if client is None:
            starter = HostStarter(network.name, directory.id, commands, network.holders)
        else:
            starter = ContainerStarter(client, network.name, directory.id, commands)
        self._network, self._launch = network.name, directory.id
        logs, self._width = directory.path / "logs", max(len(rank.name) for rank in self._ranks)
        self._programs = Programs(starter, self._ranks, directory.id, logs, self._tell, self.figures.hear)

    def start(self) -> None:
        """Start the command on all workers.

        Raises:
            SpecError: There is no such program, or another command uses the network's controller.
            RunFailed: A container or the engine failed.
        """
        label.end_crashed_launches(self._network)
        # Launches on the same workers share the result folders. Those that another launch uses are not cleared, until
        # that launch's files are copied.
        used = {worker for workers in label.launches(self._network).values() for worker in workers}
        label.record_launch(self._network, self._launch, self._containers)
        fresh = [container for worker, container in self._containers.items() if worker not in used]
        for container in fresh:
            clear_results(container)
        for note in make_writable(fresh):
            self._display.warn(note)
        try:
            if self.controller is not None:
                self._controller_context.enter_context(self.controller)
            self._programs.start()
        except BadCommand as error:
            rule, _, remedy = str(error).partition("\n    write instead: ")
            raise SpecError(self._file, [Fault("train.command", rule, remedy)]) from error
        except LaunchFailed as error:
            raise RunFailed(str(error)) from error

    def wait(self, look: Callable[[], None]) -> None:
        """Wait until all processes have ended with exit code 0, and call `look` repeatedly meanwhile.

        Raises:
            RunFailed: A process failed, which the text names, or the controller has ended.
        """

        def look_here_too() -> None:
            if self.controller is not None:
                self.controller.check()
            look()

        try:
            failure = self._programs.wait(look_here_too)
        except LaunchFailed as error:
            raise RunFailed(str(error)) from error
        if failure is not None:
            raise RunFailed(str(failure))

    def end(self) -> None:
        """End the processes that still run, and copy the files that they left."""
        with UndoStack() as stack:
            stack.callback(label.forget_launch, self._network, self._launch)
            stack.callback(self._controller_context.close)
            stack.callback(self._keep_files)
            stack.callback(self._programs.end)

    def check(self) -> None:
        """Raise the error of the controller or of the reading of output, if one failed. To be called after `end`.

        Raises:
            RunFailed: The controller of the programs has failed.
            Exception: The error that ended the reading of a program's output early, such as that of a full disk.
        """
        if self.controller is not None and self.controller.failure:
            raise RunFailed(self.controller.failure)
        self._programs.check()

    @property
    def record(self) -> dict[str, Any]:
        """The manifest's entries on the programs; complete after `end`.

        The exit code of a process that was ended because of another one is None.
        """
        return {
            "environments": {rank.name: rank.environment for rank in self._ranks},
            "exit_codes": {rank.name: self._programs.codes.get(rank.name) for rank in self._ranks},
            "kept": {worker: each.record() for worker, each in self._kept.items()},
            **({} if self.controller is None else {self.controller.name: self.controller.outcome}),
        }

    @property
    def status(self) -> dict[str, Any]:
        """The last status of the controller; without a controller, a status of no rounds."""
        return {"swaps": [], "membership_events": []} if self.controller is None else self.controller.status

    @property
    def idle(self) -> list[str]:
        """The reason why the controller was not used, in a list; empty if it was used. To be read after `end`."""
        return [self.controller.idle] if self.controller is not None and self.controller.idle else []

    def _keep_files(self) -> None:
        for worker, container in self._containers.items():
            self._kept[worker] = self.figures.take(worker, container)
        for line in describe_copied(self._kept, self._out):
            self._display.pass_on(f"  {line}")

    def _tell(self, name: str, line: str) -> None:
        self._display.pass_on(f"{name:<{self._width}} | {line}")


def containers_of(experiment: Experiment) -> ProgramContainers | None:
    """Return the workers' containers as the `train` section describes them; None if the command runs on the host.

    Raises:
        SpecError: The command's files can't be read.
    """
    program, folder = experiment.spec.program, experiment.file.parent
    assert program is not None
    if program.on_host:
        return None
    scratch = ScratchSpace(tmp_bytes=int(program.tmp), shm_bytes=int(program.shm), out_bytes=int(program.out))
    found = ProgramContainers(folder / program.files, program.image_from(folder), scratch, program.renew_image)
    found.check()
    return found
