"""The programs of an experiment that trains by a command, and what they say of themselves."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from typing import Any

import docker

from testbed.emulation.containers import engine
from testbed.emulation.containers.fleet import ContainerRequest, Fleet, ProgramContainers, ScratchSpace
from testbed.emulation.network.holders import idle
from testbed.emulation.network.node import ContainerHost
from testbed.emulation.testbed import Testbed
from testbed.launch.errors import BadCommand, LaunchFailed
from testbed.launch.out import Kept, kept_in_words, take_out
from testbed.launch.program import ContainerStarter
from testbed.launch.programs import Programs
from testbed.launch.ranks import Peer, Rank, alone, ranks_of
from testbed.launch.working_folder import make_writable
from testbed.run.directory import RunDirectory
from testbed.run.errors import RunFailed
from testbed.run.programs.program_controller import ProgramController
from testbed.spec.errors import Fault, SpecError
from testbed.spec.experiment import Experiment
from testbed.telemetry.printed_metrics import Figures, figures_in
from testbed.telemetry.tensorboard import EVENTS, read_figures


def check_command(experiment: Experiment) -> None:
    """Raise SpecError where one command for all workers would have each train alone."""
    program, workers = experiment.spec.program, experiment.topology.workers
    assert program is not None
    words = [] if isinstance(program.command, dict) else program.command
    if len(workers) > 1 and (option := alone(words)):
        rule = f"torchrun {option} starts a training of its own on each of {len(workers)} workers, which never meet"
        raise SpecError(experiment.file, [Fault("train.command", rule, f"torchrun without {option}")])


class ExperimentPrograms:
    """The command of an experiment on a testbed's workers, which are up. Whoever starts it calls `end`."""

    def __init__(
        self,
        experiment: Experiment,
        testbed: Testbed,
        client: docker.DockerClient,
        directory: RunDirectory,
        tell: Callable[[str], None],
    ) -> None:
        """`tell` hears each line that a program prints, after its name."""
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
        self.kept: dict[str, Kept] = {}  # what was copied from each worker, once all has ended
        self._workers = sorted({rank.worker for rank in self.ranks})
        self._out = directory.path / "out"
        self.sums: ProgramController | None = None
        if program.planned:
            self.sums = ProgramController(
                experiment.topology, None, self.ranks, testbed.folder, directory.path, program.planned
            )
            self.ranks = [self.sums.told(rank) for rank in self.ranks]
        starter = ContainerStarter(client, testbed.name, directory.id, commands)
        logs = directory.path / "logs"
        self._programs = Programs(starter, self.ranks, directory.id, logs, self._tell, self._figures.hear)

    def start(self) -> None:
        """Start it on all of them. SpecError for a program that is not there, RunFailed where a container or the engine
        does not do its part."""
        if self.sums is not None:
            self._ends.enter_context(self.sums)
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
        """Until all have ended well. RunFailed names the first that has not, or says that their controller has ended.
        `look` is called meanwhile."""

        def look_here_too() -> None:
            if self.sums is not None:
                self.sums.check()
            look()

        try:
            failure = self._programs.wait(look_here_too)
        except LaunchFailed as error:
            raise RunFailed(str(error)) from error
        if failure is not None:
            raise RunFailed(str(failure))

    def end(self) -> None:
        """End what still runs, and take what was left."""
        self._programs.end()
        for worker in self._workers:
            self.kept[worker] = self._figures.take(worker, self._network.container(worker))
        for line in kept_in_words(self.kept, self._out):
            self._say(f"  {line}")
        self._ends.close()

    def check(self) -> None:
        """Raise RunFailed where their controller gave up, once all has ended."""
        if self.sums is not None and self.sums.failure:
            raise RunFailed(self.sums.failure)

    def idle(self) -> list[str]:
        """Return what was there for nothing, once all has ended."""
        return [self.sums.idle] if self.sums is not None and self.sums.idle else []

    def _tell(self, name: str, line: str) -> None:
        self._say(f"{name} | {line}")


class ExperimentContainers:
    """What an experiment's command finds around it. SpecError where it may not read its files."""

    def __init__(self, experiment: Experiment) -> None:
        program, folder = experiment.spec.program, experiment.file.parent
        assert program is not None
        scratch = ScratchSpace(tmp_bytes=int(program.tmp), shm_bytes=int(program.shm), out_bytes=int(program.out))
        self._workers = experiment.topology.workers
        self._containers = ProgramContainers(folder / program.files, program.image_from(folder), scratch)
        self._containers.check()

    def fleet(self, testbed: Testbed) -> Fleet:
        """Where a testbed's workers will run. EngineError, ImageError, or SpecError for an image that is not there."""
        return Fleet.connected(testbed.name, testbed.control, self._containers)

    def requests(self) -> Iterator[ContainerRequest]:
        """Of each worker, in which nothing runs yet."""
        return idle(self._workers, self._containers.files)

    def record(self, fleet: Fleet) -> dict[str, Any]:
        """For a manifest, once they are started."""
        limits = fleet.limits.record(self._workers) if fleet.limits else {}
        return {**fleet.image_record(), "limits": limits, "docker_client": engine.CLIENT_RECORD}


#: The figures that programs gave of themselves.
CURVES = "curves.jsonl"


class ProgramFigures:
    """Kept in a run's directory."""

    def __init__(self, directory: RunDirectory) -> None:
        self._directory = directory

    def hear(self, program: str, line: str) -> None:
        """A program has printed a line, which may have figures."""
        if (figures := figures_in(line)) is not None:
            self._keep(program, figures)

    def take(self, worker: str, node: ContainerHost) -> Kept:
        """Copy what a worker's programs left, and keep the figures in it. Return what was copied."""
        target = self._directory.path / "out" / worker
        kept = take_out(node.holder, target)
        for file in sorted(target.rglob(EVENTS)):
            for figures in read_figures(file):
                self._keep(worker, figures)
        return kept

    def _keep(self, name: str, figures: Figures) -> None:
        at_s = time.time() if figures.at_s is None else figures.at_s
        record: Mapping[str, Any] = {"at_s": at_s, "program": name, "step": figures.step, "values": figures.values}
        self._directory.append(CURVES, record)
