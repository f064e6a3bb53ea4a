"""What is asked of what runs on this machine: of a network's owner over its socket, of a controller over HTTP."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from starlette.responses import PlainTextResponse

from testbed.controller.admin_access import AdminAccess
from testbed.emulation import desk, label
from testbed.emulation.difference import Difference
from testbed.emulation.history import History
from testbed.emulation.links import Links
from testbed.emulation.live import LiveLinks
from testbed.emulation.network import Network
from testbed.emulation.requests import HistoryRequest, LinkRequest, RequestServer, StatusRequest, SwapRequest
from testbed.emulation.testbed import Swapped, Testbed
from testbed.spec.topology import Topology
from tests.emulation.recorder import Recorder
from tests.fuzz.controllers import nothing_unhandled
from tests.fuzz.files import make_workspace
from tests.fuzz.messages import simply
from tests.fuzz.target import Feed, Target

NAME = "fuzzed"
LINK = "paris->london"
TOKEN = "a-token"


class Standing:
    """A network that is up but for its packets: its links, and the swap of its topology."""

    def __init__(self, topology: Topology, history: History) -> None:
        self._topology = topology
        self._in_force = Links(Recorder(), history.note)
        for link in topology.links.values():
            self._in_force.add(link)
        network = SimpleNamespace(topology=topology, links_in_force=self._in_force, take=self._take)
        self.links = LiveLinks(cast(Network, network))

    def swap(self, file: Path) -> Swapped:
        """As a testbed does, up to where it would build."""
        return Swapped(Difference.between(self._topology, Topology.load(file)), 0, 0.0, 0, 0)

    def _take(self, a: str, b: str, up: bool) -> None:
        self._in_force.take([f"{a}->{b}", f"{b}->{a}"], up)


@contextmanager
def owned(folder: Path) -> Iterator[Feed]:
    """The owner of a network, which answers at its socket."""
    topology = Topology.load(make_workspace(folder / "files") / "topologies" / "smoke.yaml")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(topology.file.parent)
        patch.setattr(label, "STATE_ROOT", folder / "s")
        patch.setattr(desk, "status", lambda _: {})
        history = History()
        answering = desk.Desk(cast(Testbed, Standing(topology, history)), history)
        with label.labelled(NAME) as state, RequestServer(NAME, answering.answer):

            def feed(data: bytes) -> None:
                with nothing_unhandled("testbed.emulation"), socket.socket(socket.AF_UNIX) as connection:
                    connection.settimeout(10)
                    connection.connect(str(state / "owner.sock"))
                    connection.sendall(data)
                    connection.shutdown(socket.SHUT_WR)
                    json.loads(connection.makefile("rb").read())

            yield feed


def use_headers(data: bytes) -> None:
    """A request to the admin's port: its first line has verb, path and query, the others are headers."""
    first, *lines = data.split(b"\n")
    verb, path, query = (*first.split(b" "), b"", b"")[:3]
    headers = [(name.lower(), value) for name, _, value in (line.partition(b": ") for line in lines)]
    scope = {
        **{"type": "http", "method": verb.decode("latin-1"), "path": path.decode("latin-1"), "query_string": query},
        **{"headers": headers, "server": ("127.0.0.1", 80), "http_version": "1.1", "root_path": ""},
    }
    status: list[int] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        status.extend([message["status"]] if "status" in message else [])

    asyncio.run(AdminAccess(PlainTextResponse("in"), TOKEN)(scope, receive, send))
    assert status[0] in (200, 303, 401, 403, 421)
    assert status[0] in (401, 403, 421) or TOKEN.encode() in data or b"%" in query, "let in without the token"


OWNED = {
    "status": StatusRequest(),
    "rate": LinkRequest(link=LINK, values={"rate": "5mbit", "delay": "20ms", "jitter": "1ms", "loss": "0.1%"}),
    "down": LinkRequest(link=LINK, up=False),
    "history": HistoryRequest(since=2),
    "swap": SwapRequest(file=Path("smoke.yaml")),
}
HOST = b"host: 127.0.0.1:80"
ASKED = {
    "token": b"GET / token=%s\n%s" % (TOKEN.encode(), HOST),
    "bearer": b"POST /stop\n%s\nauthorization: Bearer %s" % (HOST, TOKEN.encode()),
    "cookie": b"POST /stop\n%s\ncookie: testbed_80=%s\norigin: http://localhost:80" % (HOST, TOKEN.encode()),
    "stranger": b"GET /status\n%s\norigin: http://elsewhere" % HOST,
}

TARGETS = (
    Target("owner", owned, {name: request.model_dump_json().encode() + b"\n" for name, request in OWNED.items()}),
    Target("access", simply(use_headers), ASKED),
)
