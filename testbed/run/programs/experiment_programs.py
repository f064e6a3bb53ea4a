"""The programs of an experiment whose command trains: their containers, ranks, output and figures."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from typing import Any

import docker

from testbed.emulation.containers import engine
from testbed.emulation.containers.fleet import ContainerRequest, Fleet, ProgramContainers, ScratchSpace
from testbed.emulation.network.holders import idle_requests
from testbed.emulation.network.node import ContainerHost
from testbed.emulation.testbed import Testbed
from testbed.launch import BadCommand, LaunchFailed
from testbed.launch.program import ContainerStarter
from testbed.launch.programs import Programs
from testbed.launch.ranks import Peer, Rank, alone, ranks_of
from testbed.launch.result_files import CopiedFiles, copy_results, describe_copied
from testbed.launch.working_folder import make_writable
from testbed.run.directory import RunDirectory
from testbed.run.errors import RunFailed
from testbed.run.programs.program_controller import ProgramController
from testbed.spec.errors import Fault, SpecError
from testbed.spec.experiment import Experiment
from testbed.telemetry.printed_metrics import Figures, figures_in
from testbed.telemetry.tensorboard import EVENTS, read_figures


def check_command(experiment: Experiment) -> None:
    """Raise SpecError if the command would make each worker train alone."""
    program, workers = experiment.spec.program, experiment.topology.workers
    assert program is not None
    words = [] if isinstance(program.command, dict) else program.command
    if len(workers) > 1 and (option := alone(words)):
        rule = f"torchrun {option} starts a separate training on each of the {len(workers)} workers"
        raise SpecError(experiment.file, [Fault("train.command", rule, f"torchrun without {option}")])


#: The file of the figures that programs printed or logged.
CURVES = "curves.jsonl"


class ProgramFigures:
    """Collects the figures that programs print or log, in the run's directory."""

    def __init__(self, directory: RunDirectory) -> None:
        self._directory = directory

    def hear(self, program: str, line: str) -> None:
        """Record the figures in a line that a program printed, if it has any."""
        if (figures := figures_in(line)) is not None:
            self._keep(program, figures)

    def take(self, worker: str, node: ContainerHost) -> CopiedFiles:
        """Copy the files that a worker's programs left, record the figures in them, and return the copied files."""
        target = self._directory.path / "out" / worker
        kept = copy_results(node.holder, target)
        for file in sorted(target.rglob(EVENTS)):
            for figures in read_figures(file):
                self._keep(worker, figures)
        return kept

    def _keep(self, name: str, figures: Figures) -> None:
        at_s = time.time() if figures.at_s is None else figures.at_s
        record: Mapping[str, Any] = {"at_s": at_s, "program": name, "step": figures.step, "values": figures.values}
        self._directory.append(CURVES, record)


class ExperimentPrograms:
    """The command of an experiment on a testbed's running workers. The caller of `start` also calls `end`.

    Args:
        experiment: The experiment.
        testbed: Its testbed, with the workers' containers.
        client: The Docker client.
        directory: The run's directory.
        tell: Called with each line that a program prints, after its name.

    Attributes:
        ranks: The processes.
        kept: The files copied from each worker, after `end`.
        controller: The controller of the backend `wan` or of a scheme, or None.
    """

    def __init__(
        self,
        experiment: Experiment,
        testbed: Testbed,
        client: docker.DockerClient,
        directory: RunDirectory,
        tell: Callable[[str], None],
    ) -> None:
        self._file = experiment.file
        self._network = testbed.network
        self._figures = ProgramFigures(directory)
        self._ends = ExitStack()
        self._say = tell
        program = experiment.spec.program
        assert program is not None
        commands = program.commands(experiment.topology)
        workers = [worker for worker in experiment.topology.workers if worker.name in commands]
        peers = [Peer(worker.name, worker.site, testbed.network.address(worker)) for worker in workers]
        self.ranks = [
            Rank(rank.worker, rank.name, rank.environment | program.environment)
            for rank in ranks_of(commands, peers, program.nproc)
        ]
        self.kept: dict[str, CopiedFiles] = {}  # what was copied from each worker, once all has ended
        self._workers = sorted({rank.worker for rank in self.ranks})
        self._out = directory.path / "out"
        self.controller: ProgramController | None = None
        if program.planned:
            self.controller = ProgramController(
                experiment.topology, None, self.ranks, testbed.folder, directory.path, program.planned
            )
            self.ranks = [self.controller.with_environment(rank) for rank in self.ranks]
        starter = ContainerStarter(client, testbed.name, directory.id, commands)
        logs = directory.path / "logs"
        self._programs = Programs(starter, self.ranks, directory.id, logs, self._tell, self._figures.hear)

    def start(self) -> None:
        """Start the command on all workers.

        Raises:
            SpecError: The image has no such program.
            RunFailed: A container or the engine failed.
        """
        if self.controller is not None:
            self._ends.enter_context(self.controller)
        for note in make_writable(self._network.container(worker).holder for worker in self._workers):
            self._say(f"WARNING: {note}")
        try:
            self._programs.start()
        except BadCommand as error:
            rule, _, remedy = str(error).partition("\n    write instead: ")
            raise SpecError(self._file, [Fault("train.command", rule, remedy)]) from error
        except LaunchFailed as error:
            raise RunFailed(str(error)) from error

    def wait(self, look: Callable[[], None]) -> None:
        """Wait until all processes have ended with exit code 0.

        Args:
            look: Called repeatedly while waiting.

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
        self._programs.end()
        for worker in self._workers:
            self.kept[worker] = self._figures.take(worker, self._network.container(worker))
        for line in describe_copied(self.kept, self._out):
            self._say(f"  {line}")
        self._ends.close()

    def check(self) -> None:
        """Raise RunFailed if the controller failed; for after `end`."""
        if self.controller is not None and self.controller.failure:
            raise RunFailed(self.controller.failure)

    def idle(self) -> list[str]:
        """Return why the controller was not used, as a list of at most one reason; for after `end`."""
        return [self.controller.idle] if self.controller is not None and self.controller.idle else []

    def _tell(self, name: str, line: str) -> None:
        self._say(f"{name} | {line}")


class ExperimentContainers:
    """The workers' containers as the experiment's `train` section describes them.

    Raises:
        SpecError: The command's files can't be read.
    """

    def __init__(self, experiment: Experiment) -> None:
        program, folder = experiment.spec.program, experiment.file.parent
        assert program is not None
        scratch = ScratchSpace(tmp_bytes=int(program.tmp), shm_bytes=int(program.shm), out_bytes=int(program.out))
        self._workers = experiment.topology.workers
        self._containers = ProgramContainers(folder / program.files, program.image_from(folder), scratch)
        self._containers.check()

    def fleet(self, testbed: Testbed) -> Fleet:
        """Return the fleet of a testbed's workers. Raises EngineError, ImageError, or SpecError for a missing image."""
        return Fleet.connected(testbed.name, testbed.control, self._containers)

    def requests(self) -> Iterator[ContainerRequest]:
        """Yield the request of each worker's container, in which nothing runs yet."""
        return idle_requests(self._workers, self._containers.files)

    def record(self, fleet: Fleet) -> dict[str, Any]:
        """Return the image and the limits for the manifest, once the containers are started."""
        limits = fleet.limits.record(self._workers) if fleet.limits else {}
        return {**fleet.image_record(), "limits": limits, "docker_client": engine.CLIENT_RECORD}
