"""The owner's side of the controller: a Unix socket for requests of the run that owns the controller.

A connection carries one request and its answer. Each is a JSON value that ends with its direction of the stream:

    {"request": "ForcePolicy", "policy": "mst"}   ->   {"answer": {}}
                                                  or   {"refused": "why"}
"""

from __future__ import annotations

import asyncio
import json
import logging
from contextlib import suppress
from pathlib import Path
from typing import Any

from testbed.api.requests import Request, request_from_json
from testbed.api.server import unix_socket
from testbed.controller.enrolment import enrol
from testbed.controller.owner_requests import OWNER_REQUESTS, AddMember, ChangeNetwork, ReadRounds, ReadStatus
from testbed.controller.service import ControllerService
from testbed.planning.view import links_from_json, members_from_json, routes_from_json
from testbed.telemetry.store import finite

log = logging.getLogger(__name__)

#: The first words of a refusal that is caused by an internal error of the controller.
OWN_FAULT = "the controller failed"


class OwnerServer:
    """Serves the owner of a controller, on the controller's event loop.

    Args:
        controller: The controller.
        path: The Unix socket, for its owner's user alone.
    """

    def __init__(self, controller: ControllerService, path: Path) -> None:
        self._controller = controller
        self._path = path

    async def start(self) -> None:
        """Listen at the owner's Unix socket."""
        self._server = await asyncio.start_unix_server(self._serve, sock=unix_socket(self._path))

    def close(self) -> None:
        """Stop listening, and remove the socket."""
        self._server.close()
        self._path.unlink(missing_ok=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            reply = await answer(self._controller, await reader.read())
            writer.write(json.dumps(reply).encode())
            await writer.drain()
        except OSError as error:  # the owner has gone
            log.info("the owner left before its answer: %s", error)
        finally:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()


async def answer(controller: ControllerService, request_json: bytes) -> dict[str, Any]:
    """Carry out a request in JSON. Returns `{"answer": value}`, or `{"refused": why}`."""
    try:
        request = request_from_json(json.loads(request_json), OWNER_REQUESTS)
        return {"answer": await _carry_out(controller, request)}
    except ValueError as error:  # all refusals: NotEnrolled, ViewError, PolicyError, GraphError, pydantic's
        return {"refused": str(error)}
    except Exception as error:  # an internal error: the run goes on, and its owner is told
        log.exception("internal error of the controller on a request of its owner")
        return {"refused": f"{OWN_FAULT}: {error!r}"}


async def _carry_out(controller: ControllerService, request: Request) -> Any:
    match request:
        case ReadStatus():
            return finite(controller.status())
        case ReadRounds(since=since):
            return finite(controller.coordinator.progress.rounds(since))
        case AddMember():
            members, links = members_from_json(request.members), links_from_json(request.links)
            await enrol(controller, request.newcomer, members, links, routes_from_json(request.routes))
        case ChangeNetwork():
            controller.change_network(links_from_json(request.links), routes_from_json(request.routes))
        case _:
            controller.do(request)
    return {}
