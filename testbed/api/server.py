"""The API's server: a thread beside the subject that listens at a Unix socket and, if asked to, on a port.

Its libraries are loaded with the first connection: loading takes 0.2 s of a core, which a run that nobody watches
saves.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import select
import socket
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Self

from testbed.api.subject import Subject
from testbed.errors import CANNOT
from testbed.sockets import unix_address

if TYPE_CHECKING:
    from starlette.types import ASGIApp

    from testbed.api.stream import StateFeed

log = logging.getLogger(__name__)


class PortTaken(RuntimeError):
    """The requested port is in use by another program."""

    exit_code = CANNOT


class ApiServer:
    """Serves the API of a subject while it is entered.

    Args:
        subject: The network, run or recording to serve.
        path: The Unix socket, which only its owner can use.
        port: Also listen on this port of 127.0.0.1, for clients with the token; 0 takes any free port. A socket instead
            of a number listens already.
        token: The token, or None to make a new one.

    Raises:
        PortTaken: The port is in use.
    """

    def __init__(
        self, subject: Subject, path: Path, port: int | socket.socket | None = None, token: str | None = None
    ) -> None:
        self._subject = subject
        self._sockets = [] if port is None else [port_socket(port) if isinstance(port, int) else port]
        self.port: int | None = None if port is None else self._sockets[0].getsockname()[1]
        self.token = token or secrets.token_urlsafe(32)
        self._sockets.append(unix_socket(path))
        self._feed: StateFeed | None = None
        self._end = os.eventfd(0)
        self._thread = threading.Thread(target=self._run, name="api", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        os.eventfd_write(self._end, 1)
        self._thread.join()
        os.close(self._end)

    def listening(self) -> socket.socket | None:
        """Return another socket of the port, which stays when the server ends; None without a port."""
        return None if self.port is None else self._sockets[0].dup()

    def join(self) -> None:
        """Wait until the server ends or an interrupt comes."""
        self._thread.join()

    def announce(self) -> None:
        """Look at the subject soon, since it may have changed. Any thread may call this, at any time."""
        if (feed := self._feed) is not None:
            feed.announce()

    def _run(self) -> None:
        try:
            first = select.poll()  # `select` refuses descriptors from 1,024 on
            for descriptor in (*(each.fileno() for each in self._sockets), self._end):
                first.register(descriptor, select.POLLIN)
            ready = [descriptor for descriptor, _ in first.poll()]
            if self._end not in ready:
                asyncio.run(self._serve())
        except Exception:
            log.exception("the API has ended because of an error; the network or run goes on")
        finally:
            # The Unix socket then refuses clients. Clients of the port wait, if `listening` gave it to the next server.
            for each in self._sockets:
                each.close()

    async def _serve(self) -> None:
        import uvicorn

        from testbed.api.access import TokenAccess
        from testbed.api.app import make_app
        from testbed.api.stream import StateFeed

        self._feed = StateFeed(self._subject.state)
        app: ASGIApp = TokenAccess(make_app(self._subject, self._feed), self.token)
        config = uvicorn.Config(
            app, lifespan="off", log_config=None, log_level="warning", timeout_graceful_shutdown=1, access_log=False
        )
        server = uvicorn.Server(config)

        def end() -> None:
            asyncio.get_running_loop().remove_reader(self._end)  # it stays readable
            server.should_exit = True

        asyncio.get_running_loop().add_reader(self._end, end)
        try:
            await server.serve(self._sockets)
        finally:
            asyncio.get_running_loop().remove_reader(self._end)
            self._feed = None


def port_socket(port: int) -> socket.socket:
    """Return a socket that listens at a port of 127.0.0.1. Raises: PortTaken: The port is in use."""
    try:
        return socket.create_server(("127.0.0.1", port))
    except OSError as error:
        raise PortTaken(f"--port {port}: {error.strerror}; write another port, or 0 for any free one") from error


def unix_socket(path: Path) -> socket.socket:
    """Return a socket that listens at `path` and that only its owner can use."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with unix_address(path) as short:
        listening.bind(short)
    path.chmod(0o600)  # before anyone can connect
    listening.listen(64)
    return listening
