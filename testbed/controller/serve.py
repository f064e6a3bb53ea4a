"""A controller and its admin side as one process's work, until a signal."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path

import uvicorn

from testbed.controller.admin import make_app
from testbed.controller.service import ControllerService
from testbed.controller.spec import ControllerSpec


@dataclass(frozen=True, slots=True)
class Endpoints:
    """Where a controller listens: for members at a Unix socket and perhaps a TCP address, for the admin at a Unix
    socket and perhaps a port of 127.0.0.1."""

    members: Path
    admin: Path
    tcp: tuple[str, int] | None = None
    http: int | None = None


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Signals are ours: the members are told first."""
        yield


async def serve(spec: ControllerSpec, endpoints: Endpoints, out: Path) -> None:
    """Serve until SIGTERM or SIGINT. OSError when an endpoint is taken, PolicyError when the first view has no plan."""
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ended.set)
    sockets = [_unix_socket(endpoints.admin)]
    if endpoints.http is not None:
        sockets.append(socket.create_server(("127.0.0.1", endpoints.http)))
    controller = ControllerService(spec, endpoints.members, out, endpoints.tcp)
    config = uvicorn.Config(make_app(controller), lifespan="off", log_level="warning", timeout_graceful_shutdown=1)
    server = _Server(config)
    try:
        await controller.start()
        serving = asyncio.create_task(server.serve(sockets))
        await ended.wait()
        await controller.close()
        server.should_exit = True
        await serving
    finally:
        endpoints.admin.unlink(missing_ok=True)


def _unix_socket(path: Path) -> socket.socket:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listening.bind(str(path))
    path.chmod(0o600)
    return listening
