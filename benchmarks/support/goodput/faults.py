"""The faults of `benchmarks.goodput`, drawn by a seed and injected at moments of Unix time by `tests.chaos`."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from random import Random

from testbed.api.client import RequestFailed, RequestRefused
from testbed.emulation.daemon import client
from tests.chaos.faults import Fault, Kill, Moment, Partition, Pause
from tests.chaos.targets import TargetMissing, Targets

#: Seconds from one fault to the next; shorter where a cell would have less than one of each kind.
FAULT_EACH_S = 30.0
STOPPED_S, CUT_OFF_S = (0.5, 5.0), (5.0, 20.0)
SLOW, SLOW_S = 0.1, 20.0


@dataclass(frozen=True, slots=True)
class At(Moment):
    """A moment in Unix time."""

    unix_s: float = 0.0

    def has_come(self, targets: Targets) -> bool:
        """Return whether the moment has come."""
        return time.time() >= self.unix_s

    def __str__(self) -> str:
        return f"at {self.unix_s:.1f}"


def _send(targets: Targets, member: str, number: signal.Signals) -> None:
    """Send a signal to a member's process and all helpers that it started."""
    with suppress(ProcessLookupError):
        os.killpg(targets.process(member).pid, number)


class KillAll(Kill):
    """Kill a member, with the helpers that it started."""

    def inject(self, targets: Targets) -> None:
        """Kill them."""
        _send(targets, self.target, signal.SIGKILL)


@dataclass(frozen=True)
class PauseAll(Pause):
    """Stop a member for some seconds, with the helpers that it started."""

    def inject(self, targets: Targets) -> None:
        """Stop them, and continue them."""
        _send(targets, self.target, signal.SIGSTOP)
        try:
            time.sleep(self.seconds)
        finally:
            _send(targets, self.target, signal.SIGCONT)


class CutOff(Partition):
    """Drop all packets of a member's namespace for some seconds, whether or not the member lives on meanwhile."""

    def inject(self, targets: Targets) -> None:
        """Drop them, and let them pass again."""
        with targets.netns(self.target).open("rb") as namespace:
            _change_drops("-I", namespace.fileno())
            try:
                time.sleep(self.seconds)
            finally:
                _change_drops("-D", namespace.fileno())


def _change_drops(action: str, namespace: int) -> None:
    for chain in ("INPUT", "OUTPUT"):
        inside = ["nsenter", f"--net=/proc/{os.getpid()}/fd/{namespace}"]
        subprocess.run([*inside, "iptables", "-w", action, chain, "-j", "DROP"], check=True, capture_output=True)


@dataclass(frozen=True)
class Slow(Fault):
    """Give a link a part of its rate for some seconds."""

    seconds: float = SLOW_S

    def inject(self, targets: Targets) -> None:
        """Change the link through the run's API, and take the change back."""
        network = client(targets.running.directory.name)
        try:
            rate_bps = network.status()["links"][self.target]["rate_bps"]
            network.change_link(self.target, {"rate": f"{rate_bps * SLOW:.0f}bit"})
            time.sleep(self.seconds)
            network.change_link(self.target, {"rate": None})
        except (RequestFailed, RequestRefused) as error:
            raise TargetMissing(f"{self.target}: {error}") from error


def drawn(seed: int, members: Sequence[str], links: Sequence[str], seconds: float, began_s: float) -> list[Fault]:
    """Draw the faults of a seed: of each four one of each kind, in any order, one after the other."""
    draw, each_s = Random(f"goodput {seed}"), min(FAULT_EACH_S, seconds / 4)
    kinds: list[str] = []
    found: list[Fault] = []
    for number in range(int(seconds / each_s)):
        kinds = kinds or draw.sample(("kill", "stop", "partition", "link"), 4)
        at, member, link = At(unix_s=began_s + (number + 0.5) * each_s), draw.choice(members), draw.choice(links)
        stopped_s, cut_off_s = draw.uniform(*STOPPED_S), draw.uniform(*CUT_OFF_S)
        match kinds.pop():
            case "kill":
                found.append(KillAll(at, member))
            case "stop":
                found.append(PauseAll(at, member, stopped_s))
            case "partition":
                found.append(CutOff(at, member, cut_off_s))
            case _:
                found.append(Slow(at, link))
    return found
