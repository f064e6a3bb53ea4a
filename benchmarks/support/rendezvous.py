"""A stand-in for the controller of benchmarks: it hands one plan to all members, and only reads their messages."""

from __future__ import annotations

import selectors
import socket
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Self

from msgspec.structs import replace

from testbed.controller.model.identity import Identities
from testbed.plan import Plan
from testbed.protocol import Hello, Job, Welcome, decode, encode

JOB = Job(rounds=1)


class Rendezvous:
    """Welcomes all members of `plan` once all have joined. A context manager; members join at `address`."""

    def __init__(self, folder: Path, plan: Plan, streams: int, timeout_s: float) -> None:
        self.address = f"unix:{folder / 'rendezvous.sock'}"
        self._plan = plan
        self._job = replace(JOB, streams=streams, round_timeout_s=timeout_s)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(str(folder / "rendezvous.sock"))
        self._listener.listen(len(plan.members))
        self._thread = threading.Thread(target=self._welcome, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()

    def _welcome(self) -> None:
        there: dict[str, tuple[socket.socket, tuple[str, int]]] = {}
        try:
            while len(there) < len(self._plan.members):
                connection, _ = self._listener.accept()
                hello = decode(connection.makefile("rb").readline())
                if isinstance(hello, Hello):
                    there[hello.member] = connection, hello.address
            roster = {member: address for member, (_, address) in there.items()}
            identities = Identities(self._plan.members, "benchmark")
            for member, (connection, _) in there.items():
                welcome = Welcome(self._job, roster, self._plan.to_json(), identities.keys(member))
                connection.sendall(encode(welcome))
            _read_to_the_end(connection for connection, _ in there.values())
        except OSError:
            return  # the listener was closed: members failed before all were there


def _read_to_the_end(connections: Iterable[socket.socket]) -> None:
    """Read all connections at once: a member whose reports nobody reads blocks when they fill the socket's buffer."""
    with selectors.DefaultSelector() as selector:
        for connection in connections:
            selector.register(connection, selectors.EVENT_READ)
        while selector.get_map():
            for key, _ in selector.select():
                if not key.fileobj.recv(1 << 16):  # type: ignore[union-attr]
                    selector.unregister(key.fileobj)
