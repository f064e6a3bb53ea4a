"""The controller's server for its owner: a Unix socket for requests of the run that owns the controller.

A connection carries one request and its answer. Each is a JSON value that ends with its direction of the stream:

    {"request": "ForcePolicy", "policy": "mst"}   ->   {"answer": {}}
                                                  or   {"refused": "why"}
                                                  or   {"failed": "an internal error of the controller"}

A member comes to an elastic run in three steps:

1. The run makes the request AddMember: the member's name and job, and the network that includes it.
2. The controller adds the member's socket, token, job and links. The other members are not told yet.
3. The member joins as a lost member does: by a plan that includes it, with which the others get its keys.
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
from testbed.controller.allreduce.coordinator import AllReduceCoordinator
from testbed.controller.client import OWNER_REQUESTS, AddMember, ChangeNetwork, ReadRounds, ReadStatus
from testbed.controller.service import ControllerService
from testbed.errors import DetailedError
from testbed.planning import Pair, View
from testbed.telemetry.store import finite

log = logging.getLogger(__name__)


class NotEnrolled(DetailedError, ValueError):
    """The run can't take the member. The text says why, and what to do instead."""


async def enrol(controller: ControllerService, request: AddMember) -> None:
    """Let a new member join from now on.

    Raises:
        NotEnrolled: The run can't take the member, or takes none now.
    """
    coordinator, name = controller.coordinator, request.newcomer.name
    if not isinstance(coordinator, AllReduceCoordinator):
        raise NotEnrolled(
            "a gossip run takes no new member: its graph is made at the start. Write the worker into the topology file",
            rule="gossip",
        )
    if coordinator.spec.elastic is None:
        raise NotEnrolled(
            "only an elastic run takes a new member; write `elastic: {quorum: 2}` in its file", rule="not-elastic"
        )
    if not controller.server.local:
        text = "members that come over TCP can't be added during a run; start the controller with the name in --members"
        raise NotEnrolled(text, rule="secrets")
    if controller.state != "running":
        raise NotEnrolled(
            f"the run is {controller.state}; a new member can join only while it is running", rule="not-running"
        )
    if name in coordinator.spec.members:
        raise NotEnrolled(f"{name!r} is a member of this run already; use another name", rule="member", member=name)
    known, at_s = coordinator.maker.options.view, coordinator.clocks.unix()
    try:
        view = View.of_network(
            request.members, request.links, _by_pair(request), known.model_bytes, at_s, known.knowledge
        )
        spec = coordinator.spec.with_member(request.newcomer, view)
    except ValueError as error:  # pydantic's ValidationError, ViewError
        raise NotEnrolled(str(error), rule="spec", member=name) from error
    coordinator.identities.add(name)
    await controller.server.listen_for(name)
    controller.spec = spec
    coordinator.follow(spec)
    controller.changes.set()


class OwnerServer:
    """Serves the owner of a controller, on the controller's event loop.

    The Unix socket at `path` is for its owner's user alone.
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
    """Carry out a request in JSON. Return `{"answer": value}`, `{"refused": why}` or `{"failed": error}`."""
    try:
        request = request_from_json(json.loads(request_json), OWNER_REQUESTS)
        return {"answer": await _carry_out(controller, request)}
    except ValueError as error:  # all refusals: NotEnrolled, ViewError, PolicyError, GraphError, pydantic's
        return {"refused": str(error)}
    except Exception as error:  # an internal error: the run goes on, and its owner is told
        log.exception("internal error of the controller on a request of its owner")
        return {"failed": f"{error!r}; the controller's log has the traceback"}


async def _carry_out(controller: ControllerService, request: Request) -> Any:
    match request:
        case ReadStatus():
            return finite(controller.status())
        case ReadRounds(since=since):
            return finite(controller.coordinator.rounds(since))
        case AddMember():
            await enrol(controller, request)
        case ChangeNetwork():
            controller.change_network(request.links, _by_pair(request))
        case _:
            controller.do(request)
    return {}


def _by_pair(request: ChangeNetwork) -> dict[Pair, tuple[str, ...]]:
    return {(source, target): route for source, target, route in request.routes}
