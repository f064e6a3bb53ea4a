"""Serves a controller in one process until a signal: for the run that owns it, or standalone with the API."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from testbed.api.server import ApiServer
from testbed.controller.model.spec import ControllerSpec
from testbed.controller.owner_server import OwnerServer
from testbed.controller.run_records import LEAST_BYTES
from testbed.controller.server.member_server import TcpEndpoint
from testbed.controller.server.secret_file import own_secret
from testbed.controller.service import ControllerService
from testbed.controller.subject import ControllerSubject


@dataclass(frozen=True, slots=True)
class Endpoints:
    """The sockets and ports of a standalone controller.

    Attributes:
        members: The folder of the members' Unix sockets.
        api: The API's Unix socket, for its owner's user alone.
        token: The file of the API's token, made if it is missing. Requests at the port must show the token.
        tcp: The address for members of other machines, or None.
        port: The API's port of 127.0.0.1, or None.
    """

    members: Path
    api: Path
    token: Path
    tcp: TcpEndpoint | None = None
    port: int | None = None


async def serve_owner(spec: ControllerSpec, members: Path, owner: Path, out: Path) -> None:
    """Serve the run that owns the controller, until SIGTERM or SIGINT.

    Raises:
        OSError: A socket can't be made.
        PolicyError: The first view has no plan.
    """
    controller = ControllerService(spec, members, out)
    ended, server = _signalled(), OwnerServer(controller, owner)
    await controller.start()
    await server.start()
    try:
        await ended.wait()
        await controller.close()
    finally:
        server.close()


async def serve_attached(spec: ControllerSpec, endpoints: Endpoints, out: Path) -> None:
    """Serve until SIGTERM or SIGINT, or until standard input ends or has a line, and the members have left.

    Raises:
        OSError: An endpoint is taken, or others can read the token.
        PortTaken: The API's port is taken.
        PolicyError: The first view has no plan.
    """
    # The folder is a temporary one, often in memory, and the number of rounds is unknown.
    controller = ControllerService(spec, endpoints.members, out, endpoints.tcp, most_report_bytes=LEAST_BYTES)
    ended = _signalled()
    following = asyncio.create_task(_follow_input(controller, ended))
    await _serve(controller, endpoints, out, ended)
    following.cancel()


async def serve_trainings(trainings: Iterable[tuple[ControllerSpec, Path]], endpoints: Endpoints, once: bool) -> bool:
    """Serve one training after the other until SIGTERM or SIGINT, and print the outcome of each.

    Args:
        trainings: Each training's spec and directory.
        endpoints: Where to listen.
        once: Serve only the first training.

    Returns:
        Whether the training failed, with `once`; else False, after a signal.

    Raises:
        OSError: An endpoint is taken, or others can read the token.
        PortTaken: The API's port is taken.
        PolicyError: The first view has no plan.
    """
    ended, before = _signalled(), None
    for spec, out in trainings:
        controller = ControllerService(spec, endpoints.members, out, endpoints.tcp, takes_next=not once, before=before)
        await _serve(controller, endpoints, out, ended, until_over=True, keep_server=not once)
        if ended.is_set():
            break
        how = f"failed: {controller.failure}" if controller.state == "failed" else "is done"
        more = "" if once else ". Members that come now begin the next one"
        print(f"testbed-controller: the training in {out} {how}{more}", file=sys.stderr, flush=True)
        if once:
            return controller.state == "failed"
        before = controller
    return False


def _signalled() -> asyncio.Event:
    """Return an event that SIGTERM and SIGINT set."""
    ended = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    return ended


async def _serve(
    controller: ControllerService,
    endpoints: Endpoints,
    out: Path,
    ended: asyncio.Event,
    until_over: bool = False,
    keep_server: bool = False,
) -> None:
    """Serve until `ended`, or with `until_over` until the training's end. `keep_server` keeps the members' server."""
    token = None if endpoints.port is None else own_secret(endpoints.token)
    api = ApiServer(ControllerSubject(controller, out), endpoints.api, endpoints.port, token)
    try:
        if api.port is not None:
            _print_page_link(api.port, api.token, endpoints.token)
        await controller.start()
        api.__enter__()
        announcing = asyncio.create_task(_announce(controller, api))
        waits = [asyncio.create_task(ended.wait())]
        waits += [asyncio.create_task(controller.finished.wait())] if until_over else []
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()
        await controller.close(keep_server=keep_server and not ended.is_set())
        await announcing
        # In a thread, because the API's own thread requests the state from this event loop.
        await asyncio.to_thread(api.__exit__, None, None, None)
    finally:
        endpoints.api.unlink(missing_ok=True)


async def _announce(controller: ControllerService, api: ApiServer) -> None:
    """Announce each change of the controller's state to the API until the controller is closed."""
    api.announce()
    while not controller.closed:
        await controller.changes.wait()
        controller.changes.clear()
        api.announce()


async def _follow_input(controller: ControllerService, ended: asyncio.Event) -> None:
    """Set `ended` at the end of standard input or at a line there, after the training that is on."""
    loop, over, descriptor = asyncio.get_running_loop(), asyncio.Event(), sys.stdin.fileno()

    def read_input() -> None:
        os.read(descriptor, 4096)
        over.set()

    loop.add_reader(descriptor, read_input)
    await over.wait()
    loop.remove_reader(descriptor)
    if controller.state == "running":
        await controller.finished.wait()
    ended.set()


def _print_page_link(port: int, token: str, file: Path) -> None:
    """Print the page's link, with the token only to a terminal: others may read a log."""
    if sys.stderr.isatty():
        print(f"page: http://127.0.0.1:{port}/#token={token}", file=sys.stderr)
    else:
        print(f"page: http://127.0.0.1:{port}/#token=… with the token in {file}", file=sys.stderr)
