"""A small controller for tests of the library alone: it welcomes members, sends plans, and keeps members' messages."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterable
from pathlib import Path

from msgspec.structs import replace

from testbed.controller.model.identity import Identities
from testbed.plan import Plan
from testbed.protocol import (
    Confirm,
    ControlMessage,
    Goodbye,
    Held,
    Hello,
    Job,
    Prepare,
    Probe,
    Report,
    Stop,
    Welcome,
    decode,
    encode,
)
from testbed.sync.transport import sockets
from tests.waiting import PATIENCE_S


def job(rounds: int = 1, **changes: object) -> Job:
    """Return a job with defaults for tests."""
    return Job(rounds, **{"round_timeout_s": 20.0, **changes})  # type: ignore[arg-type]


class Controller:
    """Speaks protocol.py over a Unix socket in `directory`. A context manager."""

    def __init__(self, directory: Path, plan: Plan, work: Job) -> None:
        self.plan = plan
        self.work = work
        self.identities = Identities(plan.members, "a secret")
        self.roster: dict[str, tuple[str, int]] = {}
        self.false_rosters: dict[str, dict[str, tuple[str, int]]] = {}  # member → addresses in place of the right ones
        self.messages: list[ControlMessage] = []
        self.in_force: set[int] = set()  # epochs of reported rounds
        self.lease_s = 0.0  # with one, members' sessions are elastic
        self.confirms_to: Iterable[str] | None = None  # members that get Confirm before the controller dies; None: all
        self.at_goodbye: Callable[[str], None] = lambda member: None  # called before a member's connection is closed
        self.changed = threading.Condition()  # a reentrant lock, because conditions read the messages
        self._path = directory / "control.sock"
        self._connections: dict[str, socket.socket] = {}
        self._holders: dict[int, set[str]] = {}
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(str(self._path))
        self._listener.listen(64)
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def address(self) -> str:
        return f"unix:{self._path}"

    def prepare(self, plan: Plan, only: Iterable[str] | None = None) -> None:
        for member in self.plan.members if only is None else only:
            self.send_line(member, encode(Prepare(plan.to_json())))

    def probe(self, member: str, peer: str, most: int, seconds: float) -> None:
        self.send_line(member, encode(Probe(peer, most, seconds)))

    def stop(self, member: str, reason: str) -> None:
        self.send_line(member, encode(Stop(reason)))

    def send_line(self, member: str, line: bytes) -> None:
        """Send a line, which need not be a message. A member may get it while others are still welcomed."""
        with self.changed:
            self._connections[member].sendall(line)

    def received(self, kind: type[ControlMessage]) -> list[ControlMessage]:
        with self.changed:
            return [message for message in self.messages if isinstance(message, kind)]

    def reports(self) -> list[Report]:
        return [message for message in self.received(Report) if isinstance(message, Report)]

    def goodbyes(self) -> list[Goodbye]:
        return [message for message in self.received(Goodbye) if isinstance(message, Goodbye)]

    def await_messages(self, kind: type[ControlMessage], number: int, timeout_s: float = PATIENCE_S) -> None:
        self.await_condition(lambda: sum(isinstance(m, kind) for m in self.messages) >= number, timeout_s)

    def await_condition(self, holds: Callable[[], bool], timeout_s: float = PATIENCE_S) -> None:
        """Wait for a condition that becomes true only with a message."""
        with self.changed:
            assert self.changed.wait_for(holds, timeout_s), "the condition did not become true in time"

    def die(self) -> None:
        """End like a killed process: close the listener and every member's connection."""
        sockets.close_now(self._listener)
        for connection in self._connections.values():
            sockets.close_now(connection)

    def __enter__(self) -> Controller:
        return self

    def __exit__(self, *_: object) -> None:
        self.die()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        try:
            for line in connection.makefile("rb"):
                message = decode(line)
                self._take(connection, message)
                if isinstance(message, Goodbye):
                    self.at_goodbye(message.member)
                    if not self.lease_s:
                        sockets.close_now(connection)
                    elif len(self.goodbyes()) == len(self.plan.members):
                        for member in self.plan.members:
                            self.stop(member, "all members are done")
        except (OSError, ValueError):
            return

    def _take(self, connection: socket.socket, message: ControlMessage) -> None:
        with self.changed:
            self.messages.append(message)
            if isinstance(message, Report):
                self.in_force.add(message.epoch)
            if isinstance(message, Hello):
                self.roster[message.member] = message.address
                self._connections[message.member] = connection
                if len(self.roster) == len(self.plan.members):
                    self._welcome()
            if isinstance(message, Held) and not message.refusal:
                self._holders.setdefault(message.epoch, set()).add(message.member)
                if self._holders[message.epoch] == set(self.plan.members):
                    for each in self._connections if self.confirms_to is None else self.confirms_to:
                        self._connections[each].sendall(encode(Confirm(message.epoch)))
                    if self.confirms_to is not None:
                        self.die()
            self.changed.notify_all()

    def _welcome(self) -> None:
        for shard, member in enumerate(self.plan.members):
            share = {"shard": shard, "shards": len(self.plan.members)} if self.work.workload else {}
            work = replace(self.work, workload={**self.work.workload, **share})
            roster = self.roster | self.false_rosters.get(member, {})
            line = encode(Welcome(work, roster, self.plan.to_json(), self.identities.keys(member), self.lease_s))
            self._connections[member].sendall(line)
