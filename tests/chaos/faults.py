"""What the nemesis does to a run, each a class with `inject`; and what a run that ends of it may say.

A fault is told its moment in events, not in seconds: a line of the run's output, or a round. `reasons` are patterns,
one of which is to stand in what the run says where it ended before its last round; a run may go on as well. `ends` has
those exit codes that a fault itself brings about, `late_ends` those of a run that had come to its end before.
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
from tests.chaos.targets import NotThere, Targets
from tests.run.running import Running

FILL_BYTES = 1 << 20
#: A member that is started anew has a process after 1 to 5 s; one that may not be has none.
RESTARTED_S = 30.0

#: What a target's kind is called by; any other is a member.
PARTS = ("owner", "controller", "core", "replay", "control", "peer")

#: What a run says of a member that is lost, or of what others waited for in vain because of it.
OF_A_MEMBER = (r"\b{target}\b", r"quorum")


@dataclass(frozen=True, slots=True)
class Moment:
    """When a line of the output holds `line`, or a member has reported round `round`."""

    line: str = ""
    round: int = 0

    def has_come(self, targets: Targets) -> bool:
        """Whether it has."""
        return any(self.line in each for each in targets.running.lines) if self.line else targets.round >= self.round

    def __str__(self) -> str:
        return f"at {self.line.strip()!r}" if self.line else f"in round {self.round}"


@dataclass(frozen=True)
class Fault:
    """Something that happens to a `target` at a moment."""

    at: Moment
    target: str = ""
    reasons: ClassVar[tuple[str, ...]] = ()
    ends: ClassVar[tuple[int, ...]] = ()
    late_ends: ClassVar[tuple[int, ...]] = ()

    def inject(self, targets: Targets) -> str | None:
        """Do it, and return once it is over, with what was wrong of what it began itself, if something was. NotThere
        where the run has no such part."""
        raise NotImplementedError

    @property
    def kind(self) -> str:
        """Its name in tables."""
        what = getattr(self, "to", self.target)
        return f"{type(self).__name__} {what if what in PARTS else 'member'}" if what else type(self).__name__

    def __str__(self) -> str:
        settings = {name: value for name, value in vars(self).items() if name not in ("at", "target", "seed")}
        return " ".join(filter(None, [type(self).__name__, self.target, *map(str, settings.values()), str(self.at)]))


class Kill(Fault):
    """A process dies."""

    reasons = (*OF_A_MEMBER, r"ended by signal 9", r"{target} ended")
    ends = (-signal.SIGKILL,)

    def inject(self, targets: Targets) -> None:
        targets.process(self.target).send(signal.SIGKILL)


@dataclass(frozen=True)
class KillAgain(Kill):
    """A member dies, and dies again so many seconds after it has been started anew: before it is welcomed, while others
    hand it what it missed, or in a round."""

    seconds: float = 0.0

    def inject(self, targets: Targets) -> None:
        first = targets.process(self.target)
        first.send(signal.SIGKILL)
        if (second := _restarted(targets, self.target, first)) is not None:
            _wait(self.seconds, second)
            second.send(signal.SIGKILL)


@dataclass(frozen=True)
class Pause(Fault):
    """A process is stopped, and goes on after some seconds."""

    seconds: float = 2.0
    reasons = (*OF_A_MEMBER, r"{target}.* (has said nothing|did not answer)", r"made no progress")

    def inject(self, targets: Targets) -> None:
        process = targets.process(self.target)
        process.send(signal.SIGSTOP)
        try:
            _wait(self.seconds, process)
        finally:
            process.send(signal.SIGCONT)


@dataclass(frozen=True)
class Partition(Fault):
    """A member's packets go nowhere, and none come, for some seconds."""

    seconds: float = 3.0
    reasons = (*OF_A_MEMBER, r"waited", r"made no progress")

    def inject(self, targets: Targets) -> None:
        process, netns = targets.process(self.target), targets.netns(self.target)
        _drop(netns, process, self.seconds, ("INPUT",), ("OUTPUT",))


@dataclass(frozen=True)
class Delay(Fault):
    """What a member sends on one of its connections to peers stays away for some seconds: the others go on."""

    seconds: float = 3.0
    seed: int = 0
    reasons = (*OF_A_MEMBER, r"waited", r"made no progress")

    def inject(self, targets: Targets) -> None:
        ports = [
            (str(connection.getsockname()[1]), str(connection.getpeername()[1]))
            for connection in targets.connections(self.target, socket.AF_INET)
        ]
        if not ports:
            raise NotThere(f"{self.target}'s connections")
        process, netns = targets.process(self.target), targets.netns(self.target)
        source, target = random.Random(self.seed).choice(sorted(ports))
        _drop(netns, process, self.seconds, ("OUTPUT", "-p", "tcp", "--sport", source, "--dport", target))


@dataclass(frozen=True)
class Truncate(Fault):
    """A member's connections, to its controller or to its peers, end in the midst of whatever they carry."""

    to: str = "peer"
    reasons = (*OF_A_MEMBER, r"connection", r"hung up", r"closed")

    def inject(self, targets: Targets) -> None:
        _on_connections(self, targets, lambda connection: connection.shutdown(socket.SHUT_RDWR))


@dataclass(frozen=True)
class Corrupt(Fault):
    """Bytes that nobody meant to send get into what a member sends to its controller, or to its peers."""

    to: str = "peer"
    seed: int = 0
    reasons = (*OF_A_MEMBER, r"connection", r"frame", r"checksum", r"message", r"hung up")

    def inject(self, targets: Targets) -> None:
        draw = random.Random(self.seed)
        _on_connections(self, targets, lambda connection: connection.send(draw.randbytes(64), socket.MSG_DONTWAIT))


@dataclass(frozen=True)
class StepClock(Fault):
    """The time of day is another one from now on for all of the run's processes; see clock.py."""

    seconds: int = 3600

    def inject(self, targets: Targets) -> None:
        clock.step(targets.running.folder, self.seconds)


class KillEngine(Fault):
    """The Docker engine of the run dies, which is one of its own then, and is started again. Containers end with it."""

    reasons = (r"engine", *OF_A_MEMBER, r"ended", r"no longer")

    def inject(self, targets: Targets) -> None:
        if targets.engine is None:
            raise NotThere("engine of its own")
        targets.engine.kill()
        targets.engine.start()


class RunBeside(Fault):
    """A second run, of the same experiment, begins beside the run, and comes to its end."""

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
    """The disk of the run's directory has no room left; it is one of its own then."""

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
    """Ctrl-C, as a terminal sends it: to the whole group."""

    reasons = (r"interrupted",)
    ends = (INTERRUPTED,)
    late_ends = (-signal.SIGINT,)

    def inject(self, targets: Targets) -> None:
        if targets.running.process.poll() is not None:
            raise NotThere("owner")
        os.killpg(targets.running.process.pid, signal.SIGINT)


class Terminate(Fault):
    """A request to end."""

    reasons = (r"interrupted",)
    ends = (INTERRUPTED,)
    late_ends = (-signal.SIGTERM,)

    def inject(self, targets: Targets) -> None:
        targets.process("owner").send(signal.SIGTERM)


class ExhaustMemory(Fault):
    """A program in a member's container takes all the memory that there is for it, until the kernel ends one."""

    reasons = (*OF_A_MEMBER, r"out of memory")
    PROGRAM: ClassVar[str] = "kept = []\nwhile True: kept.append(bytes(1 << 24))"

    def inject(self, targets: Targets) -> None:
        _in_container(targets, self.target, self.PROGRAM)


class ExhaustPids(Fault):
    """A program in a member's container has as many processes as it may, for some seconds."""

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
    raise NotThere(member)


def _restarted(targets: Targets, member: str, dead: ProcessIdentity) -> ProcessIdentity | None:
    """The process that takes a dead one's place; None where none does so in time, or the run ends."""
    until = time.monotonic() + RESTARTED_S
    while targets.running.process.poll() is None and time.monotonic() < until:
        with suppress(NotThere):
            if (found := targets.process(member)) != dead:
                return found
        time.sleep(0.02)
    return None


def _wait(seconds: float, process: ProcessIdentity) -> None:
    """So long, or until the process has ended."""
    until = time.monotonic() + seconds
    while process.is_running and time.monotonic() < until:
        time.sleep(0.05)


def _drop(netns: Path, process: ProcessIdentity, seconds: float, *packets: tuple[str, ...]) -> None:
    """For so long, or until the process has ended, no such packets in its network namespace: a chain, and a match."""

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
        raise NotThere(f"{fault.target}'s connections")
