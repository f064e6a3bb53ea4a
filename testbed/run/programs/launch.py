"""`testbed launch`, whole: a command on a network's workers, and a directory with what came of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress

from testbed.emulation import cleanup
from testbed.emulation.containers import engine
from testbed.emulation.containers.fleet import ProgramContainers
from testbed.emulation.daemon.subject import serve_network
from testbed.emulation.testbed import Workers
from testbed.emulation.undo import UndoStack
from testbed.errors import in_full
from testbed.launch.command import Command
from testbed.run.directory import RunDirectory
from testbed.run.errors import CannotRun
from testbed.run.guards import disk
from testbed.run.programs.launched import INTERRUPTED, carry_out
from testbed.run.terminal.display import Display
from testbed.spec.topology import Topology


def launch_over(topology: Topology, command: Command, containers: ProgramContainers, display: Display) -> bool:
    """`launch_on` a network that is up for as long, with such containers where any are needed.

    Raises what `launch_on` does, and what the network does where it does not come up.
    """
    command.check([worker.name for worker in topology.workers])
    client = None if command.on_host else engine.connect()
    workers: Workers = "namespaces" if command.on_host else containers
    with _directory(topology.name, display) as directory, UndoStack() as stack:
        # Interrupted at the wrong moment, the way back may have missed something; this finds it by its label.
        stack.callback(cleanup.sweep, client, directory.id)
        network = serve_network(topology, name=directory.id, backend="auto", workers=workers, step=display.step)
        stack.enter_context(network)
        display.say(f"  {directory.id} is up meanwhile: `testbed status`, `testbed link 'A->B' --rate 5mbit`, …")
        return carry_out(directory.id, command, directory, display)


def launch_on(network: str, command: Command, display: Display) -> bool:
    """Whether a command came to its end well on all its workers of a network that is up. Whatever happens, nothing that
    it started is left when this returns or raises.

    BadCommand for a worker or a program that is not there; LaunchFailed or RunFailed when the network, a container
    or the disk does not hold; CannotRun where there is no room at the begin, EngineError where containers are asked
    for and no engine answers.
    """
    with _directory(network, display) as directory:
        return carry_out(network, command, directory, display)


@contextmanager
def _directory(name: str, display: Display) -> Iterator[RunDirectory]:
    directory = RunDirectory(name)
    display.say(f"[bold]launch[/] in {directory.path}")
    with closing(directory):
        try:
            if short := disk.shortage([directory.path]):
                raise CannotRun(short)
            yield directory
        except BaseException as error:
            with suppress(OSError):  # the disk may be full, and then the terminal says so
                if directory.read_whole("summary.json") is None:
                    directory.use_reserve()
                    reason = in_full(error) if isinstance(error, Exception) else INTERRUPTED
                    directory.write("summary.json", {"finished": False, "reason": reason})
            raise
