"""A controller and its admin side as one process's work, until a signal."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import signal
import socket
import sys
from collections.abc import Callable, Generator, Iterable
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
    controller = ControllerService(spec, endpoints.members, out, endpoints.tcp)
    ended = _signalled()
    following = asyncio.create_task(_follow_input(controller, ended)) if attached else None
    await _serve(controller, endpoints, ended)
    if following is not None:
        following.cancel()


async def serve_trainings(
    trainings: Iterable[tuple[ControllerSpec, Path]],
    endpoints: Endpoints,
    tell: Callable[[ControllerService, Path], None],
    once: bool = False,
) -> None:
    """Serve one training after the other, each with its spec and directory, until SIGTERM or SIGINT; with `once` the
    first alone. `tell` is called when one is over. OSError and PolicyError as by `serve`."""
    ended, before = _signalled(), None
    for spec, out in trainings:
        controller = ControllerService(spec, endpoints.members, out, endpoints.tcp, takes_next=not once, before=before)
        await _serve(controller, endpoints, ended, until_over=True, keep_server=not once)
        if ended.is_set():
            return
        tell(controller, out)
        if once:
            return
        before = controller


def _signalled() -> asyncio.Event:
    """Return what SIGTERM and SIGINT set from now on."""
    ended = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    return ended


async def _serve(
    controller: ControllerService,
    endpoints: Endpoints,
    ended: asyncio.Event,
    until_over: bool = False,
    keep_server: bool = False,
) -> None:
    """Serve until `ended`, or with `until_over` to the training's end, after which the members' server may go on."""
    sockets = [unix_socket(endpoints.admin)]
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
        waits = [asyncio.create_task(ended.wait())]
        waits += [asyncio.create_task(controller.finished.wait())] if until_over else []
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()
        await controller.close(keep_server=keep_server and not ended.is_set())
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
