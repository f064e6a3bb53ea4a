"""A controller and its admin side as one process's work, until a signal."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import signal
import socket
import sys
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path

import uvicorn
from starlette.types import ASGIApp

from testbed.api.access import TokenAccess
from testbed.api.server import unix_socket
from testbed.controller.server.admin import make_app
from testbed.controller.server.member_server import TcpEndpoint
from testbed.controller.server.metrics import with_metrics
from testbed.controller.server.secret_file import read_secret, write_secret
from testbed.controller.service import ControllerService
from testbed.controller.spec import ControllerSpec


@dataclass(frozen=True, slots=True)
class Endpoints:
    """Where a controller listens: for members at Unix sockets in the folder `members` and perhaps a TCP address, for
    the admin at a Unix socket and perhaps a port of 127.0.0.1, `http`.

    Who comes to that port shows the token in the file `http_token`, which is made if it is missing.
    """

    members: Path
    admin: Path
    http_token: Path
    tcp: TcpEndpoint | None = None
    http: int | None = None


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Signals are ours: the members are told first."""
        yield


async def serve(spec: ControllerSpec, endpoints: Endpoints, out: Path, attached: bool = False) -> None:
    """Serve until SIGTERM or SIGINT; when `attached`, also until standard input ends, which is when whoever started
    this does, and members have left. OSError when an endpoint is taken or others can read the token, PolicyError when
    the first view has no plan."""
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ended.set)
    sockets = [unix_socket(endpoints.admin)]
    controller = ControllerService(spec, endpoints.members, out, endpoints.tcp)
    app: ASGIApp = with_metrics(make_app(controller), controller)
    if endpoints.http is not None:
        sockets.append(socket.create_server(("127.0.0.1", endpoints.http)))
        token = _http_token(endpoints.http_token)
        app = TokenAccess(app, token)
        _tell(endpoints.http, token, endpoints.http_token)
    config = uvicorn.Config(app, lifespan="off", log_level="warning", timeout_graceful_shutdown=1, access_log=False)
    server = _Server(config)
    try:
        await controller.start()
        serving = asyncio.create_task(server.serve(sockets))
        following = asyncio.create_task(_follow_input(controller, ended)) if attached else None
        await ended.wait()
        if following is not None:
            following.cancel()
        await controller.close()
        server.should_exit = True
        await serving
    finally:
        endpoints.admin.unlink(missing_ok=True)


async def _follow_input(controller: ControllerService, ended: asyncio.Event) -> None:
    """Wait for the end of standard input, and then for the members that train."""
    loop, over, descriptor = asyncio.get_running_loop(), asyncio.Event(), sys.stdin.fileno()

    def hear() -> None:
        if not os.read(descriptor, 4096):
            over.set()

    loop.add_reader(descriptor, hear)
    await over.wait()
    loop.remove_reader(descriptor)
    if controller.state == "running":
        await controller.finished.wait()
    ended.set()


def _http_token(path: Path) -> str:
    if not path.exists():
        write_secret(path, secrets.token_urlsafe(32) + "\n")
    return read_secret(path)


def _tell(port: int, token: str, file: Path) -> None:
    """Print the page's link, for a person alone: what is no terminal may be a log, which others read."""
    if sys.stderr.isatty():
        print(f"dashboard: http://127.0.0.1:{port}/#token={token}", file=sys.stderr)
    else:
        print(f"dashboard: http://127.0.0.1:{port}/#token=… with the token in {file}", file=sys.stderr)
