"""`testbed launch`: a command on the workers of a network, and the directory of its records."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict
from typing import Any

from testbed.emulation import cleanup
from testbed.emulation.containers import engine
from testbed.emulation.containers.fleet import ProgramContainers, images_of
from testbed.emulation.daemon.subject import serve_network
from testbed.emulation.testbed import Workers
from testbed.emulation.undo import UndoStack
from testbed.errors import in_full
from testbed.launch.command import Command
from testbed.launch.output import Told
from testbed.launch.programs import Programs
from testbed.launch.ranks import Rank
from testbed.launch.recorder import Recorder
from testbed.launch.result_files import CopiedFiles, describe_copied
from testbed.run.conclusion.summary import wan_bytes
from testbed.run.conclusion.unused import unused_links
from testbed.run.directory import RunDirectory
from testbed.run.errors import CannotRun
from testbed.run.guards.watchdog import check_room, shortage
from testbed.run.manifest import git_commit, host_facts
from testbed.run.programs.program_controller import ProgramController
from testbed.run.terminal.display import Display
from testbed.spec.topology import Topology
from testbed.spec.units import count

INTERRUPTED = "the launch was interrupted"


def launch_over(topology: Topology, command: Command, containers: ProgramContainers, display: Display) -> bool:
    """Bring a network up, run a command on it as `launch_on` does, and take the network down.

    Args:
        topology: The network's topology.
        command: The command.
        containers: The workers' containers, for a command that does not run on the host.
        display: The terminal.

    Raises:
        EmulationError: The network does not come up.
    """
    command.check([worker.name for worker in topology.workers])
    client = None if command.on_host else engine.connect()
    workers: Workers = "namespaces" if command.on_host else containers
    with _directory(topology.name, display) as directory, UndoStack() as stack:
        # An interrupted clean-up may have missed something, which this finds by its label.
        stack.callback(cleanup.sweep, client, directory.id)
        network = serve_network(topology, name=directory.id, backend="auto", workers=workers, step=display.step)
        stack.enter_context(network)
        display.say(
            f"  {directory.id} is up during the launch: `testbed network list`, `testbed link set A-B --rate 5mbit`, …"
        )
        return carry_out(directory.id, command, directory, display)


def launch_on(network: str, command: Command, display: Display) -> bool:
    """Run a command on the workers of a network that is up, and return True if it succeeded on all of them.

    No process that it started is left, also after an exception.

    Raises:
        BadCommand: There is no such worker or program.
        LaunchFailed: A container or the network failed.
        RunFailed: The disk is full, or the controller has ended.
        CannotRun: The disk is too full to begin.
        EngineError: The command needs containers and no engine answers.
    """
    with _directory(network, display) as directory:
        return carry_out(network, command, directory, display)


@contextmanager
def _directory(name: str, display: Display) -> Iterator[RunDirectory]:
    directory = RunDirectory(name)
    display.say(f"[bold]launch[/] in {directory.path}")
    with closing(directory):
        try:
            if short := shortage([directory.path]):
                raise CannotRun(short)
            yield directory
        except BaseException as error:
            with suppress(OSError):  # the disk may be full; then the terminal says so
                if directory.read_whole("summary.json") is None:
                    directory.use_reserve()
                    reason = in_full(error) if isinstance(error, Exception) else INTERRUPTED
                    directory.write("summary.json", {"finished": False, "reason": reason})
            raise


def carry_out(network: str, command: Command, directory: RunDirectory, display: Display) -> bool:
    """Run the command, keep its records in the directory, and return True if it succeeded on all workers.

    Raises as `launch_on` does.
    """
    recorder = Recorder(network, directory.append)
    status = recorder.status()
    ranks = command.ranks(status["hosts"])
    controller = ProgramController.standing(status, ranks, directory.path, command.planned) if command.planned else None
    if controller is not None:
        ranks = [controller.with_environment(rank, command.on_host) for rank in ranks]
    _begin_manifest(directory, network, command, ranks, status)
    starter = command.starter(network, status["hosts"], directory.id)
    programs = Programs(starter, ranks, directory.id, directory.path / "logs", passed_on(ranks, display))
    began_s, reason = time.time(), INTERRUPTED
    kept: dict[str, CopiedFiles] = {}

    def keep() -> None:
        out = directory.path / "out"
        kept.update(command.copy_results(status["hosts"], out))
        for line in describe_copied(kept, out):
            display.pass_on(f"  {line}")

    try:
        with UndoStack() as stack:
            stack.callback(recorder.stop)
            recorder.start()
            for note in command.prepare(status["hosts"]):
                display.warn(note)
            if controller is not None:
                stack.enter_context(controller)
            stack.callback(keep)
            stack.callback(programs.end)
            programs.start()
            failure = programs.wait(lambda: _check(recorder, directory, controller))
            if failure is not None:
                display.pass_on(f"failed: {failure}")
        controller_failure = controller.failure if controller is not None else ""
        reason = controller_failure if failure is None else str(failure)
    except Exception as error:
        reason = in_full(error)
        raise
    finally:
        _summarize(directory, ranks, programs.codes, began_s, reason, controller, kept)
    if changed := by_hand(directory.read("events.jsonl")):
        done = ", ".join(f"{event['kind']} {event['target']}" for event in changed)
        display.pass_on(f"  changed by hand during the launch: {done}")
    took = f"{count(len(ranks), 'process')}, {time.time() - began_s:.1f} s"
    display.pass_on(f"  {took}; logs and traffic in {directory.path}")
    for why in (directory.read_whole("summary.json") or {})["idle"]:
        display.warn(why)
    if failure is None and reason:
        display.pass_on(f"failed: {reason}")
    return not reason


def passed_on(ranks: Sequence[Rank], display: Display) -> Told:
    """Return a function that prints a program's line after its name."""
    width = max(len(rank.name) for rank in ranks)
    return lambda name, line: display.pass_on(f"{name:<{width}} | {line}")


def _begin_manifest(
    directory: RunDirectory, network: str, command: Command, ranks: Sequence[Rank], status: Mapping[str, object]
) -> None:
    manifest = directory.read_whole("manifest.json") or {}
    manifest |= {
        "by_hand": [],
        "launch": asdict(command),
        "environments": {rank.name: rank.environment for rank in ranks},
        "network": status,
        "docker_client": None if command.on_host else engine.CLIENT_RECORD,
        "images": [] if command.on_host else images_of(engine.connect(), network),
        "git_commit": git_commit(),
        "host": host_facts(),
    }
    directory.write("manifest.json", manifest)


def by_hand(events: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the events that people asked for."""
    return [event for event in events if event.get("by") == "hand"]


def _check(recorder: Recorder, directory: RunDirectory, controller: ProgramController | None) -> None:
    recorder.check()
    if controller is not None:
        controller.check()
    check_room([directory.path])


def _summarize(
    directory: RunDirectory,
    ranks: Sequence[Rank],
    codes: Mapping[str, int],
    began_s: float,
    reason: str,
    controller: ProgramController | None,
    kept: Mapping[str, CopiedFiles],
) -> None:
    """Write `summary.json`. The exit code of a program that was ended because of another is None."""
    directory.use_reserve()
    events = directory.read("events.jsonl")
    manifest = directory.read_whole("manifest.json") or {}
    directory.write("manifest.json", {**manifest, "by_hand": by_hand(events)})
    traffic = directory.read("traffic.jsonl")
    carried = wan_bytes(traffic, began_s)
    links = {link for sample in traffic for link in sample["bytes"]}
    sites = sorted({rank.environment["TESTBED_SITE"] for rank in ranks})
    idle = [] if reason else [unused_links(links, sites, carried), controller.idle if controller is not None else ""]
    summary = {
        "finished": not reason,
        "reason": reason or None,
        "exit_codes": {rank.name: codes.get(rank.name) for rank in ranks},
        "wall_seconds": time.time() - began_s,
        "events": events,
        "wan_bytes": carried,
        "idle": [why for why in idle if why],
        "kept": {worker: each.record() for worker, each in kept.items()},
        **({} if controller is None else {controller.name: controller.outcome}),
    }
    directory.write("summary.json", summary)
