"""A command on the workers of a network that is up, written down in its directory as it goes on."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from testbed.emulation.containers import engine
from testbed.emulation.containers.fleet import images_of
from testbed.emulation.undo import UndoStack
from testbed.errors import in_full
from testbed.launch.command import Command
from testbed.launch.output import Told
from testbed.launch.programs import Programs
from testbed.launch.ranks import Rank
from testbed.launch.recorder import Recorder
from testbed.launch.result_files import CopiedFiles, describe_copied
from testbed.run.conclusion.idle import unused_links
from testbed.run.conclusion.summary import wan_bytes
from testbed.run.directory import RunDirectory
from testbed.run.guards.disk import check_room
from testbed.run.manifest import git_commit, host_facts
from testbed.run.programs.planned_sums import PlannedSums
from testbed.run.terminal.display import Display

INTERRUPTED = "the launch was interrupted"


def carry_out(network: str, command: Command, directory: RunDirectory, display: Display) -> bool:
    """Whether it came to its end well on all workers. Nothing that it started is left when this returns or raises.

    Raises as `launch_on` does.
    """
    recorder = Recorder(network, directory.append)
    status = recorder.status()
    ranks = command.ranks(status["hosts"])
    sums = PlannedSums.standing(status, ranks, directory.path, command.planned) if command.planned else None
    if sums is not None:
        ranks = [sums.told(rank, command.on_host) for rank in ranks]
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
            if sums is not None:
                stack.enter_context(sums)
            stack.callback(keep)
            stack.callback(programs.end)
            programs.start()
            failure = programs.wait(lambda: _check(recorder, directory, sums))
            if failure is not None:
                display.pass_on(f"failed: {failure}")
        controller = sums.failure if sums is not None else ""
        reason = controller if failure is None else str(failure)
    except Exception as error:
        reason = in_full(error)
        raise
    finally:
        _summarize(directory, ranks, programs.codes, began_s, reason, sums, kept)
    if changed := by_hand(directory.read("events.jsonl")):
        done = ", ".join(f"{event['kind']} {event['target']}" for event in changed)
        display.pass_on(f"  changed by hand meanwhile: {done}")
    display.pass_on(f"  {len(ranks)} processes, {time.time() - began_s:.1f} s; logs and traffic in {directory.path}")
    for why in (directory.read_whole("summary.json") or {})["idle"]:
        display.warn(why)
    if failure is None and reason:
        display.pass_on(f"failed: {reason}")
    return not reason


def passed_on(ranks: Sequence[Rank], display: Display) -> Told:
    """What shows the programs' lines, each after its program's name."""
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
    """What people did, which no file says."""
    return [event for event in events if event.get("by") == "hand"]


def _check(recorder: Recorder, directory: RunDirectory, sums: PlannedSums | None) -> None:
    recorder.check()
    if sums is not None:
        sums.check()
    check_room([directory.path])


def _summarize(
    directory: RunDirectory,
    ranks: Sequence[Rank],
    codes: Mapping[str, int],
    began_s: float,
    reason: str,
    sums: PlannedSums | None,
    kept: Mapping[str, CopiedFiles],
) -> None:
    """Write `summary.json`; an exit code is None where a program was ended with the others."""
    directory.use_reserve()
    events = directory.read("events.jsonl")
    manifest = directory.read_whole("manifest.json") or {}
    directory.write("manifest.json", {**manifest, "by_hand": by_hand(events)})
    traffic = directory.read("traffic.jsonl")
    carried = wan_bytes(traffic, began_s)
    links = {link for sample in traffic for link in sample["bytes"]}
    sites = sorted({rank.environment["TESTBED_SITE"] for rank in ranks})
    idle = [] if reason else [unused_links(links, sites, carried), sums.idle if sums is not None else ""]
    summary = {
        "finished": not reason,
        "reason": reason or None,
        "exit_codes": {rank.name: codes.get(rank.name) for rank in ranks},
        "wall_seconds": time.time() - began_s,
        "events": events,
        "wan_bytes": carried,
        "idle": [why for why in idle if why],
        "kept": {worker: each.record() for worker, each in kept.items()},
        **({} if sums is None else {sums.name: sums.outcome}),
    }
    directory.write("summary.json", summary)
