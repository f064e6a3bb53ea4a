"""Faults: each is a class with `inject`, and the reasons that a run which ends because of it may give.

A fault's moment is an event, not a time: a line of the run's output, or a round. `reasons` are patterns, one of which
must match the reason of a run that ended before its last round; a run may also go on. `ends` are the exit codes that a
fault itself causes, `late_ends` those of a run that had completed its rounds before.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from testbed.cli.console import INTERRUPTED
from testbed.emulation.process import ProcessIdentity
from tests.chaos import clock
from tests.chaos.targets import TargetMissing, Targets
from tests.run.running import Running

FILL_BYTES = 1 << 20
#: A restarted member has a process after 1 to 5 s; a member that is not restarted has none.
RESTARTED_S = 30.0

#: The targets that are no members.
PARTS = ("owner", "controller", "core", "replay", "control", "peer")

#: Patterns of the reason of a run that lost a member.
OF_A_MEMBER = (r"\b{target}\b", r"quorum")


@dataclass(frozen=True, slots=True)
class Moment:
    """The moment when a line of the output contains `line`, or a member has reported round `round`."""

    line: str = ""
    round: int = 0

    def has_come(self, targets: Targets) -> bool:
        """Return whether the moment has come."""
        return any(self.line in each for each in targets.running.lines) if self.line else targets.round >= self.round

    def __str__(self) -> str:
        return f"at {self.line.strip()!r}" if self.line else f"in round {self.round}"


@dataclass(frozen=True)
class Fault:
    """A fault that is injected into a `target` at a moment."""

    at: Moment
    target: str = ""
    reasons: ClassVar[tuple[str, ...]] = ()
    ends: ClassVar[tuple[int, ...]] = ()
    late_ends: ClassVar[tuple[int, ...]] = ()

    def inject(self, targets: Targets) -> str | None:
        """Inject the fault, and return when it is over.

        Returns:
            What went wrong in anything that the fault itself started, or None.

        Raises:
            NotThere: The run has no such target.
        """
        raise NotImplementedError

    @property
    def kind(self) -> str:
        """The fault's name in tables."""
        what = getattr(self, "to", self.target)
        return f"{type(self).__name__} {what if what in PARTS else 'member'}" if what else type(self).__name__

    def __str__(self) -> str:
        settings = {name: value for name, value in vars(self).items() if name not in ("at", "target", "seed")}
        return " ".join(filter(None, [type(self).__name__, self.target, *map(str, settings.values()), str(self.at)]))


class Kill(Fault):
    """Kill a process."""

    reasons = (*OF_A_MEMBER, r"ended by signal 9", r"{target} ended")
    ends = (-signal.SIGKILL,)

    def inject(self, targets: Targets) -> None:
        targets.process(self.target).send(signal.SIGKILL)


@dataclass(frozen=True)
class KillAgain(Kill):
    """Kill a member, and kill it again `seconds` after its restart.

    The second death hits it before it is welcomed, while others hand over their state, or in a round.
    """

    seconds: float = 0.0

    def inject(self, targets: Targets) -> None:
        first = targets.process(self.target)
        first.send(signal.SIGKILL)
        if (second := _restarted(targets, self.target, first)) is not None:
            _wait(self.seconds, second)
            second.send(signal.SIGKILL)


@dataclass(frozen=True)
class Pause(Fault):
    """Stop a process, and continue it after some seconds."""

    seconds: float = 2.0
    reasons = (*OF_A_MEMBER, r"{target}.* did not (answer|renew its lease)", r"timed out", r"made no progress")

    def inject(self, targets: Targets) -> None:
        process = targets.process(self.target)
        process.send(signal.SIGSTOP)
        try:
            _wait(self.seconds, process)
        finally:
            process.send(signal.SIGCONT)


@dataclass(frozen=True)
class Partition(Fault):
    """Drop all packets of a member for some seconds."""

    seconds: float = 3.0
    reasons = (*OF_A_MEMBER, r"waited", r"timed out", r"made no progress")

    def inject(self, targets: Targets) -> None:
        process, netns = targets.process(self.target), targets.netns(self.target)
        _drop(netns, process, self.seconds, ("INPUT",), ("OUTPUT",))


@dataclass(frozen=True)
class Delay(Fault):
    """Drop a member's packets on one connection to a peer for some seconds; its other connections go on."""

    seconds: float = 3.0
    seed: int = 0
    reasons = (*OF_A_MEMBER, r"waited", r"timed out", r"made no progress")

    def inject(self, targets: Targets) -> None:
        ports = [
            (str(connection.getsockname()[1]), str(connection.getpeername()[1]))
            for connection in targets.connections(self.target, socket.AF_INET)
        ]
        if not ports:
            raise TargetMissing(f"{self.target}'s connections")
        process, netns = targets.process(self.target), targets.netns(self.target)
        source, target = random.Random(self.seed).choice(sorted(ports))
        _drop(netns, process, self.seconds, ("OUTPUT", "-p", "tcp", "--sport", source, "--dport", target))


@dataclass(frozen=True)
class Truncate(Fault):
    """Shut down a member's connections, to its controller or to its peers, wherever they are in a message."""

    to: str = "peer"
    reasons = (*OF_A_MEMBER, r"connection", r"closed")

    def inject(self, targets: Targets) -> None:
        _on_connections(self, targets, lambda connection: connection.shutdown(socket.SHUT_RDWR))


@dataclass(frozen=True)
class Corrupt(Fault):
    """Insert random bytes into a member's connections to its controller, or to its peers."""

    to: str = "peer"
    seed: int = 0
    reasons = (*OF_A_MEMBER, r"connection", r"frame", r"checksum", r"message")

    def inject(self, targets: Targets) -> None:
        draw = random.Random(self.seed)
        _on_connections(self, targets, lambda connection: connection.send(draw.randbytes(64), socket.MSG_DONTWAIT))


@dataclass(frozen=True)
class StepClock(Fault):
    """Set another time of day for all processes of the run; see clock.py."""

    seconds: int = 3600

    def inject(self, targets: Targets) -> None:
        clock.step(targets.running.folder, self.seconds)


class KillEngine(Fault):
    """Kill the run's own Docker engine and start it again. Its containers end with it."""

    reasons = (r"engine", *OF_A_MEMBER, r"ended", r"no longer")

    def inject(self, targets: Targets) -> None:
        if targets.engine is None:
            raise TargetMissing("engine of its own")
        targets.engine.kill()
        targets.engine.start()


class RunBeside(Fault):
    """Start a second run of the same experiment beside the run, and wait for its end."""

    def inject(self, targets: Targets) -> str:
        with tempfile.TemporaryDirectory(prefix="chaos-beside") as place:
            for file in ("topology.yaml", "experiment.yaml", "trace.csv"):
                shutil.copy(targets.running.folder / file, place)
            experiment = str(Path(place) / "experiment.yaml")
            with Running(Path(place), experiment, program=targets.beside) as beside:
                try:
                    code = beside.end()
                except subprocess.TimeoutExpired:
                    return "the run beside hung"
            return "" if code == 0 else f"the run beside ended with {code}: {beside.output[-300:]}"


class FillDisk(Fault):
    """Fill the disk of the run's directory, which is a disk of its own."""

    reasons = (r"disk", r"No space left")

    def inject(self, targets: Targets) -> None:
        filler = targets.running.folder / "filler"
        block = bytes(FILL_BYTES)
        try:
            with filler.open("wb", buffering=0) as file:
                while file.write(block) == FILL_BYTES:
                    pass
        except OSError:
            return  # full, as was wanted


class Interrupt(Fault):
    """Send Ctrl-C as a terminal does: to the whole process group."""

    reasons = (r"interrupted",)
    ends = (INTERRUPTED,)
    late_ends = (-signal.SIGINT,)

    def inject(self, targets: Targets) -> None:
        if targets.running.process.poll() is not None:
            raise TargetMissing("owner")
        os.killpg(targets.running.process.pid, signal.SIGINT)


class Terminate(Fault):
    """Send SIGTERM to the run."""

    reasons = (r"interrupted",)
    ends = (INTERRUPTED,)
    late_ends = (-signal.SIGTERM,)

    def inject(self, targets: Targets) -> None:
        targets.process("owner").send(signal.SIGTERM)


class ExhaustMemory(Fault):
    """Take all memory of a member's container, until the kernel kills a process."""

    reasons = (*OF_A_MEMBER, r"out of memory")
    PROGRAM: ClassVar[str] = "kept = []\nwhile True: kept.append(bytes(1 << 24))"

    def inject(self, targets: Targets) -> None:
        _in_container(targets, self.target, self.PROGRAM)


class ExhaustPids(Fault):
    """Start as many processes in a member's container as it allows, for some seconds."""

    reasons = (*OF_A_MEMBER, r"thread", r"Resource temporarily")
    PROGRAM: ClassVar[str] = (
        "import os, time\ntry:\n    while os.fork(): pass\nexcept OSError: pass\ntime.sleep(3)\nos._exit(0)"
    )

    def inject(self, targets: Targets) -> None:
        _in_container(targets, self.target, self.PROGRAM)


def _in_container(targets: Targets, member: str, program: str) -> None:
    for container in targets.running.containers:
        if str(container.name).endswith(f".{member}"):
            container.exec_run(["python3", "-c", program])
            return
    raise TargetMissing(member)


def _restarted(targets: Targets, member: str, dead: ProcessIdentity) -> ProcessIdentity | None:
    """Return the process that replaces a dead one; None if there is none in time, or the run ends."""
    until = time.monotonic() + RESTARTED_S
    while targets.running.process.poll() is None and time.monotonic() < until:
        with suppress(TargetMissing):
            if (found := targets.process(member)) != dead:
                return found
        time.sleep(0.02)
    return None


def _wait(seconds: float, process: ProcessIdentity) -> None:
    """Wait `seconds`, or until the process has ended."""
    until = time.monotonic() + seconds
    while process.is_running and time.monotonic() < until:
        time.sleep(0.05)


def _drop(netns: Path, process: ProcessIdentity, seconds: float, *packets: tuple[str, ...]) -> None:
    """Drop packets in a network namespace for `seconds`, or until the process has ended.

    Each of `packets` is an iptables chain and a match.
    """

    def change(action: str) -> None:
        for chain, *match in packets:
            command = ["nsenter", f"--net={netns}", "iptables", "-w", action, chain, *match, "-j", "DROP"]
            subprocess.run(command, check=False, capture_output=True)

    change("-I")
    _wait(seconds, process)
    if process.is_running:
        change("-D")


def _on_connections(fault: Truncate | Corrupt, targets: Targets, do: Callable[[socket.socket], object]) -> None:
    family = socket.AF_UNIX if fault.to == "control" else socket.AF_INET
    done = 0
    for connection in targets.connections(fault.target, family):
        try:
            do(connection)
            done += 1
        except OSError:
            continue  # it ended by itself
    if not done:
        raise TargetMissing(f"{fault.target}'s connections")
