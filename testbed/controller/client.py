"""A client of a controller's owner socket, for the run that owns the controller, and the requests of that run."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from testbed.api.requests import REQUESTS, Request
from testbed.controller.model.spec import Newcomer
from testbed.plan import Plan
from testbed.planning.view import Member, Pair, PhysicalLink
from testbed.sockets import unix_address

PIECE_BYTES = 1 << 20


class ReadStatus(Request):
    """Read the controller's state, members, round, plan and swaps: see `ControlledRun.status`."""


class ReadRounds(Request):
    """Read the complete rounds from number `since` on."""

    since: int = 0


class ChangeNetwork(Request):
    """Change the network: the whole current one, after a swap or after a link went down or up.

    Attributes:
        links: The links by name.
        routes: The links on the route from each member to each other: the sender, the receiver, and the links' names.
    """

    links: dict[str, PhysicalLink]
    routes: list[tuple[str, str, tuple[str, ...]]]


class AddMember(ChangeNetwork):
    """Add a member to the run, which joins as soon as it connects.

    Attributes:
        newcomer: The member and its job.
        members: All members, the new one included.
    """

    newcomer: Newcomer
    members: tuple[Member, ...]


#: The requests that an owner may make: its own, and those of users (`testbed.api.requests`).
OWNER_REQUESTS: tuple[type[Request], ...] = (ReadStatus, ReadRounds, ChangeNetwork, AddMember, *REQUESTS)


class ControllerError(RuntimeError):
    """The controller refused a request, did not answer, or raised an internal error."""


class ControllerFailedError(ControllerError):
    """The controller did not answer a request, or raised an internal error on it."""


class ControllerClient:
    """Makes requests to a controller, each over its own connection. Any thread may use it.

    Every method raises ControllerFailedError if the controller does not answer or raises an internal error, and another
    ControllerError if it refuses.

    Args:
        path: The owner's Unix socket.
        timeout_s: The longest wait for each read from or write to the controller, in seconds.
    """

    def __init__(self, path: Path, timeout_s: float = 10.0) -> None:
        self._path = path
        self._timeout_s = timeout_s

    def status(self) -> dict[str, Any]:
        """Return the controller's state, members, round, plan and swaps: see `ControlledRun.status`."""
        return dict(self._ask(ReadStatus()))

    def plan(self) -> Plan:
        """Return the plan in force."""
        return Plan.from_json(self.status()["plan"])

    def rounds(self, since: int = 0) -> list[dict[str, Any]]:
        """Return the complete rounds from number `since` on."""
        return list(self._ask(ReadRounds(since=since)))

    def change_network(self, links: Mapping[str, PhysicalLink], routes: Mapping[Pair, tuple[str, ...]]) -> None:
        """Tell the controller the whole current network, after a swap or after a link went down or up."""
        self._ask(ChangeNetwork(links=dict(links), routes=_listed(routes)))

    def add_member(
        self,
        newcomer: Newcomer,
        members: Iterable[Member],
        links: Mapping[str, PhysicalLink],
        routes: Mapping[Pair, tuple[str, ...]],
    ) -> None:
        """Let one more member join as soon as it connects.

        Args:
            newcomer: The member and its job.
            members: All members, the new one included.
            links: The network's links, those of the new member included.
            routes: The links on the route from each member to each other.
        """
        self._ask(AddMember(links=dict(links), routes=_listed(routes), newcomer=newcomer, members=tuple(members)))

    def do(self, request: Request) -> None:
        """Give the controller a user's request to carry out, and wait until it has accepted it."""
        self._ask(request)

    def _ask(self, request: Request) -> Any:
        try:
            answer = json.loads(self._exchange(json.dumps(request.to_json()).encode()))
        except (OSError, ValueError) as error:
            raise ControllerFailedError(f"the controller at {self._path} did not answer: {error}") from error
        if "failed" in answer:
            raise ControllerFailedError(f"internal error of the controller: {answer['failed']}")
        if "refused" in answer:
            raise ControllerError(answer["refused"])
        return answer["answer"]

    def _exchange(self, request_json: bytes) -> bytes:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(self._timeout_s)
            with unix_address(self._path) as short:
                connection.connect(short)
            connection.sendall(request_json)
            connection.shutdown(socket.SHUT_WR)
            return b"".join(iter(lambda: connection.recv(PIECE_BYTES), b""))


def _listed(routes: Mapping[Pair, tuple[str, ...]]) -> list[tuple[str, str, tuple[str, ...]]]:
    """Return routes as a list: JSON has no pairs as keys."""
    return [(source, target, route) for (source, target), route in routes.items()]
