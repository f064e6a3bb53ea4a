"""Requests to programs of this machine: to a network's owner over its API, and to a server on a port."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from starlette.responses import PlainTextResponse

from testbed.api.access import TokenAccess
from testbed.spec.topology import Topology
from tests.api.network import answering
from tests.fuzz.controllers import MOST_S, nothing_unhandled
from tests.fuzz.files import make_workspace
from tests.fuzz.messages import without_setup
from tests.fuzz.target import Feed, Target

TOKEN = "a-token"


@contextmanager
def open_owner(folder: Path) -> Iterator[Feed]:
    """Feed requests to the owner of a network: a request's first line has verb and path, the rest is its body."""
    topology = Topology.load(make_workspace(folder / "files") / "topologies" / "smoke.yaml")
    with pytest.MonkeyPatch.context() as patch, answering(topology, folder / "api.sock"):
        patch.chdir(topology.file.parent)

        def feed(data: bytes) -> None:
            first, _, body = data.partition(b"\n")
            verb, path = (*first.split(b" "), b"", b"")[:2]
            head = b"%s %s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n" % (verb, path)
            head += b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body)
            with nothing_unhandled("testbed"), socket.socket(socket.AF_UNIX) as connection:
                connection.settimeout(MOST_S)
                connection.connect(str(folder / "api.sock"))
                connection.sendall(head + body)
                answer = connection.makefile("rb").readline()
            assert answer.startswith(b"HTTP/1.1 ") and not answer.startswith(b"HTTP/1.1 5"), answer

        yield feed


def use_headers(data: bytes) -> None:
    """Make a request to the admin's port: its first line has verb, path and query, the others are headers."""
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

    asyncio.run(TokenAccess(PlainTextResponse("in"), TOKEN)(scope, receive, send))
    assert status[0] in (200, 401, 403, 421)
    page = path == b"/" or path.startswith(b"/page/")
    assert status[0] != 200 or TOKEN.encode() in data or page, "let in without the token"


LINK = quote("paris->london").encode()
OWNED = {
    "status": b"GET /api/v1/status",
    "rate": b'PATCH /api/v1/links/%s\n{"rate": "5mbit", "delay": "20ms", "jitter": "1ms", "loss": "0.1%%"}' % LINK,
    "down": b'PATCH /api/v1/links\n{"paris->london": {"up": false, "rate": null}}',
    "history": b"GET /api/v1/history?since=2",
    "swap": b'PUT /api/v1/network\n{"file": "/smoke.yaml"}',
    "replay": b'PUT /api/v1/replay\n{"paused": true}',
}
HOST = b"host: 127.0.0.1:80"
ASKED = {
    "page": b"GET /page/page.js\n%s" % HOST,
    "bearer": b"POST /stop\n%s\nauthorization: Bearer %s" % (HOST, TOKEN.encode()),
    "page's own": b"POST /stop\n%s\nauthorization: Bearer %s\norigin: http://localhost:80" % (HOST, TOKEN.encode()),
    "stranger": b"GET /status\n%s\norigin: http://elsewhere" % HOST,
}

TARGETS = (
    Target("owner", open_owner, OWNED),
    Target("access", without_setup(use_headers), ASKED),
)
