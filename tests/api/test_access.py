"""Access to a server on a port of this machine: by the token's holder, and by pages and names that must not get in."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import pty
import re
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from starlette.responses import PlainTextResponse
from starlette.types import Message, Receive, Scope, Send
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

from testbed.api.access import TokenAccess
from testbed.api.client import ApiClient, RequestFailed
from tests.ports import free_port
from tests.program import ForkedProgram, preload
from tests.waiting import PATIENCE_S, until

pytestmark = pytest.mark.local

preload("testbed.controller.serve", "testbed.api.app")

MEMBERS = ("paris", "tokyo", "lima")


def words_of(folder: Path, port: int) -> list[str]:
    """Return the words after `python` that start a standalone controller with its API on a port."""
    listening = ["--members", ",".join(MEMBERS), "--listen", f"127.0.0.1:{free_port()}", "--model-bytes", "5000"]
    folders = ["--secrets", str(folder / "secrets"), "--out", str(folder / "run")]
    return ["-m", "testbed.controller.standalone", *listening, *folders, "--http", str(port)]


@dataclass(frozen=True, slots=True)
class Site:
    """A controller's port, its token, and what the controller's terminal showed."""

    port: int
    token: str
    shown: str
    client: ApiClient

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def bearer(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.token}"}

    def ask(self, method: str, path: str, headers: dict[str, str], body: str | None = None) -> http.client.HTTPResponse:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_S)
        connection.request(method, path, body, {"Content-Type": "application/json", **headers})
        reply = connection.getresponse()
        reply.text = reply.read().decode()  # type: ignore[attr-defined]
        connection.close()
        return reply


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Start a controller on a terminal; at the end, nobody must have stopped it."""
    folder = tmp_path_factory.mktemp("site")
    port = free_port()
    terminal, end = pty.openpty()
    process = subprocess.Popen([sys.executable, *words_of(folder, port)], stdin=subprocess.DEVNULL, stderr=end)
    os.close(end)
    shown = b""
    while b"waiting for" not in shown:
        shown += os.read(terminal, 4096)
    token = (folder / "secrets" / "http.key").read_text().strip()
    assert stat.filemode((folder / "secrets" / "http.key").stat().st_mode) == "-rw-------"
    made = Site(port, token, shown.decode(), ApiClient(folder / "run" / "admin.sock", "the controller"))
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            made.client.status()
            break
        except RequestFailed:
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.02)
    yield made
    assert made.client.status()["failure"] is None
    process.send_signal(signal.SIGTERM)
    assert process.wait(PATIENCE_S) == 0
    os.close(terminal)


STOP = json.dumps({"reason": "a page wants it"})


def test_the_link_is_shown_on_the_terminal_and_leads_to_the_page(site: Site) -> None:
    assert f"http://{site.host}/#token={site.token}" in site.shown, "what follows the # is not sent to any server"
    page = site.ask("GET", "/", {})
    assert page.status == 200 and "/page/main.js" in page.text and site.token not in page.text  # type: ignore[attr-defined]
    for path in ("/api/v1/rounds", "/api/v1/status", "/metrics"):
        assert site.ask("GET", path, site.bearer).status == 200


def test_a_request_without_token_gets_only_the_page_which_says_how_to_get_in(site: Site) -> None:
    for headers in ({}, {"Authorization": "Bearer guess"}, {"Cookie": f"token={site.token}"}):
        for method, path in (
            ("GET", "/api/v1/status"),
            ("GET", f"/api/v1/status?token={site.token}"),
            ("POST", "/"),
            ("POST", "/api/v1/stop"),
        ):
            reply = site.ask(method, path, headers, STOP if method == "POST" else None)
            assert reply.status == 401 and "link" in reply.text  # type: ignore[attr-defined]


def test_a_form_in_any_web_page_can_t_stop_a_run(site: Site) -> None:
    """A browser names the page that sends a form, and has no token to send with it."""
    for origin in ("http://evil.example", "null", f"https://{site.host}", "http://127.0.0.1:1", ""):
        assert site.ask("POST", "/api/v1/stop", {**site.bearer, "Origin": origin}, STOP).status == 403
        assert site.ask("GET", "/api/v1/status", {**site.bearer, "Origin": origin}).status == 403


@pytest.mark.parametrize(("port", "status"), [(80, 200), (8080, 421)])
@pytest.mark.parametrize("name", ["127.0.0.1", "localhost"])
def test_browsers_leave_out_the_port_of_http_alone(name: str, port: int, status: int) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await PlainTextResponse("in")(scope, receive, send)

    async def receive() -> Message:
        return {"type": "http.request"}

    async def send(message: Message) -> None:
        sent.append(message)

    sent: list[Message] = []
    headers = {"host": name, "origin": f"http://{name}", "authorization": "Bearer key"}
    scope = {
        "type": "http",
        "method": "GET",
        "path": "/api/v1/status",
        "server": ("127.0.0.1", port),
        "headers": [(key.encode(), value.encode()) for key, value in headers.items()],
    }
    asyncio.run(TokenAccess(app, "key")(scope, receive, send))
    assert sent[0]["status"] == status


def test_a_name_that_somebody_lets_point_here_is_not_this_server(site: Site) -> None:
    for host in ("evil.example", f"evil.example:{site.port}", "127.0.0.1", "localhost:1", ""):
        assert site.ask("GET", "/api/v1/status", {**site.bearer, "Host": host}).status == 421
        assert site.ask("GET", "/", {"Host": host}).status == 421
    assert site.ask("GET", "/api/v1/status", {**site.bearer, "Host": f"localhost:{site.port}"}).status == 200


def test_the_page_s_own_requests_and_a_program_s_are_taken(site: Site) -> None:
    plan = json.dumps({"policy": "star", "options": {"server": "paris"}})
    assert site.ask("PUT", "/api/v1/policy", {**site.bearer, "Origin": f"http://{site.host}"}, plan).status == 200
    assert site.ask("PUT", "/api/v1/policy", site.bearer, plan).status == 200


def test_a_websocket_shows_the_token_in_its_first_message(site: Site) -> None:
    address, own = f"ws://{site.host}/api/v1/stream", f"http://{site.host}"
    for origin in (own, None):
        with connect(address, origin=origin) as live:  # type: ignore[arg-type]
            live.send(json.dumps({"token": site.token}))
            assert json.loads(live.recv(60))["state"]["training"]["state"] == "waiting"
    deep, no_text = "[" * 100_000, r'{"token": "\ud800"}'
    for first in (json.dumps({"token": "guess"}), json.dumps([site.token]), site.token, b"\x00", "{", deep, no_text):
        with connect(address, origin=own) as live:  # type: ignore[arg-type]
            live.send(first)
            with pytest.raises(ConnectionClosed) as closed:
                live.recv(60)
            assert closed.value.rcvd is not None and closed.value.rcvd.code == 1008
    with pytest.raises(InvalidStatus):
        connect(address, origin="http://evil.example")  # type: ignore[arg-type]


def test_the_link_has_the_port_that_was_free_and_in_a_log_no_token(tmp_path: Path) -> None:
    with ForkedProgram(*words_of(tmp_path, 0)) as process:
        until(lambda: "page: " in process.said[1])
        process.terminate()
        _, said = process.communicate(PATIENCE_S)
        assert process.wait() == 0, said
    key = tmp_path / "secrets" / "http.key"
    assert str(key) in said and key.read_text().strip() not in said
    assert re.search(r"page: http://127\.0\.0\.1:[1-9]", said)
