"""The parts of a run that goes on, found from outside: what can be killed, stopped, cut off or filled."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from testbed.emulation.label import processes
from testbed.emulation.process import ProcessIdentity
from tests.chaos.own_engine import OwnEngine
from tests.connections import connections_of
from tests.run.running import Running

#: What a process of a run has in its command line. What replays traces is the core where that shapes.
COMMANDS = {
    "controller": (b"testbed.controller",),
    "core": (b"testbed-shaper",),
    "replay": (b"shaping.timekeeper", b"testbed-shaper"),
}

#: A report of a round has 1 to 2 KiB.
TAIL_BYTES = 1 << 15


class NotThere(Exception):
    """The run has no such part now."""


@dataclass(frozen=True)
class Targets:
    """A run's, by what they are called: `owner`, `controller`, `core`, `replay`, or a member's name.

    `beside` is the program of another run with such members, `engine` the run's Docker engine where that is its own."""

    running: Running
    members: tuple[str, ...]
    beside: tuple[str, ...]
    engine: OwnEngine | None

    def process(self, name: str) -> ProcessIdentity:
        """The process that is called so. NotThere where there is none."""
        pid = self.running.process.pid if name == "owner" else self._pid(name)
        if (found := ProcessIdentity.of(pid)) is None:
            raise NotThere(name)
        return found

    def netns(self, member: str) -> Path:
        """A member's network namespace."""
        return Path(f"/proc/{self.process(member).pid}/ns/net")

    def connections(self, member: str, family: socket.AddressFamily) -> Iterator[socket.socket]:
        """The connected sockets of a member's process, as copies of its descriptors: what is done to them is done to
        its own. Those of its peers are IPv4, that of the controller is a Unix socket."""
        return connections_of(self.process(member).pid, family)

    @property
    def round(self) -> int:
        """The last round that a member has reported; 0 before."""
        with suppress(OSError, IndexError, ValueError, KeyError):
            with (self.running.directory / "rounds.jsonl").open("rb") as file:
                file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL_BYTES))
                lines = file.read().splitlines()
            whole = [line for line in lines[-8:] if line.startswith(b"{") and line.endswith(b"}")]
            return max(int(json.loads(line)["round"]) for line in whole)
        return 0

    def _pid(self, name: str) -> int:
        network = self.running.directory.name
        for pid, _ in processes(network):
            with suppress(OSError):
                folder = Path(f"/proc/{pid}")
                commands = COMMANDS.get(name)
                if commands is not None and any(each in (folder / "cmdline").read_bytes() for each in commands):
                    return pid
                if commands is None and (folder / "comm").read_text().strip() == name:
                    return pid
        for container in self.running.containers if name in self.members else ():
            if str(container.name).endswith(f".{name}"):
                return int(container.attrs["State"]["Pid"])
        raise NotThere(name)
