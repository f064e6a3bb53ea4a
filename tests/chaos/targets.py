"""The parts of a running run, found from outside: what can be killed, stopped, cut off or filled."""

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

#: A part of each process's command line. Where the core shapes, it also replays traces.
COMMANDS = {
    "controller": (b"testbed.controller",),
    "core": (b"testbed-shaper",),
    "replay": (b"shaping.timekeeper", b"testbed-shaper"),
}

#: A report of a round has 1 to 2 KiB.
TAIL_BYTES = 1 << 15


class TargetMissing(Exception):
    """The run has no such part at the moment."""


@dataclass(frozen=True)
class Targets:
    """The parts of a run by name: `owner`, `controller`, `core`, `replay`, or a member's name."""

    running: Running
    members: tuple[str, ...]
    #: The program of a second run with such members.
    beside: tuple[str, ...]
    #: The run's own Docker engine, if it has one.
    engine: OwnEngine | None

    def process(self, name: str) -> ProcessIdentity:
        """Return the process of a part. Raises NotThere."""
        pid = self.running.process.pid if name == "owner" else self._pid(name)
        if (found := ProcessIdentity.of(pid)) is None:
            raise TargetMissing(name)
        return found

    def netns(self, member: str) -> Path:
        """Return the path of a member's network namespace."""
        return Path(f"/proc/{self.process(member).pid}/ns/net")

    def connections(self, member: str, family: socket.AddressFamily) -> Iterator[socket.socket]:
        """Yield the connected sockets of a member's process, as copies of its descriptors.

        An action on a copy acts on the member's own socket. Connections to peers are IPv4, that to the controller is a
        Unix socket.
        """
        return connections_of(self.process(member).pid, family)

    @property
    def round(self) -> int:
        """The last round that a member has reported; 0 before the first."""
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
        raise TargetMissing(name)
