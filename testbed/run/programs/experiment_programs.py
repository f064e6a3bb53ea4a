"""The programs of an experiment that trains by a command, and what they say of themselves."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack

import docker

from testbed.emulation.testbed import Testbed
from testbed.launch import BadCommand, LaunchFailed
from testbed.launch.program import ContainerStarter
from testbed.launch.programs import Programs
from testbed.launch.ranks import Peer, Rank, alone, ranks_of
from testbed.launch.result_files import CopiedFiles, describe_copied
from testbed.launch.working_folder import make_writable
from testbed.run.directory import RunDirectory
from testbed.run.errors import RunFailed
from testbed.run.programs.figures import ProgramFigures
from testbed.run.programs.planned_sums import PlannedSums
from testbed.spec.errors import Fault, SpecError
from testbed.spec.experiment import Experiment


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
        self.kept: dict[str, CopiedFiles] = {}  # what was copied from each worker, once all has ended
        self._workers = sorted({rank.worker for rank in self.ranks})
        self._out = directory.path / "out"
        self.sums: PlannedSums | None = None
        if program.planned:
            self.sums = PlannedSums(
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
        for line in describe_copied(self.kept, self._out):
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
