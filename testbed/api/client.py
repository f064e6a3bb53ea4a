"""A client of the API of a network or run on this machine, over its Unix socket."""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

from testbed.api.requests import CANNOT as IMPOSSIBLE
from testbed.api.requests import HttpRequest
from testbed.errors import BAD_INPUT, CANNOT, FAILED
from testbed.sockets import unix_address

#: Seconds to wait for an answer. A swap that starts tens of containers takes this long on a small host, and other
#: requests wait for it.
ANSWER_TIMEOUT_S = 300.0


class UnixConnection(http.client.HTTPConnection):
    """HTTP over a Unix socket."""

    def __init__(self, path: Path, timeout_s: float) -> None:
        super().__init__("localhost", timeout=timeout_s)
        self._path = path

    def connect(self) -> None:
        """Connect to the Unix socket, where HTTPConnection would connect over TCP.

        Raises:
            OSError: Nothing listens at the socket.
        """
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        with unix_address(self._path) as short:
            self.sock.connect(short)


class RequestRefused(ValueError):
    """The server refused a wrong request; the text says what to write instead."""

    exit_code = BAD_INPUT


class RequestFailed(RuntimeError):
    """The server did not carry out a valid request, or did not answer; the text says why."""

    exit_code = FAILED


class RequestImpossible(RequestFailed):
    """The server did not carry out a valid request, because this machine or its Docker engine can't."""

    exit_code = CANNOT


class ApiClient:
    """Sends requests, each over a connection of its own; safe to use from several threads.

    Every method raises RequestRefused for a wrong request, and RequestFailed for one that was not carried out or got no
    answer.

    Args:
        path: The Unix socket.
        name: The name of the network or run in errors.
        remedy: The end of the error for a missing answer.
    """

    def __init__(self, path: Path, name: str, remedy: str = "") -> None:
        self._path = path
        self._name = name
        self._remedy = remedy and f"; {remedy}"

    def status(self) -> dict[str, Any]:
        """Return the fields of NetworkStatus."""
        return dict(self._ask("GET", "/status"))

    def history(self, since: int | None) -> dict[str, Any]:
        """Return the fields of LinkHistory."""
        return dict(self._ask("GET", "/history" + ("" if since is None else f"?since={since}")))

    def events(self) -> list[dict[str, Any]]:
        """Return the events so far, each with the fields of EventResource."""
        return list(self._ask("GET", "/events"))

    def change_link(self, link: str, patch: Mapping[str, str | bool | None]) -> dict[str, Any]:
        """Change a link by the fields of LinkPatch. Return the changed link."""
        return dict(self._ask("PATCH", f"/links/{quote(link, safe='')}", patch))

    def do(self, request: HttpRequest) -> dict[str, Any]:
        """Send a request to the API's server, which carries it out. Return its result."""
        method, path = request.ROUTE
        fields = request.model_dump(mode="json", exclude_unset=True)
        named = [name for name in fields if f"{{{name}}}" in path]
        path = path.format(**{name: quote(fields.pop(name), safe="") for name in named})
        return dict(self._ask(method, path, fields)["result"])

    def _ask(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        connection = UnixConnection(self._path, ANSWER_TIMEOUT_S)
        try:
            text = None if body is None else json.dumps(body)
            connection.request(method, f"/api/v1{path}", text, {"Content-Type": "application/json"})
            reply = connection.getresponse()
            status, answer = reply.status, json.loads(reply.read())
        except (OSError, ValueError, http.client.HTTPException) as error:
            raise RequestFailed(f"{self._name} does not answer ({error}){self._remedy}") from error
        finally:
            connection.close()
        if status == 200:
            return answer
        said = str(answer["detail"])
        if status == IMPOSSIBLE:
            raise RequestImpossible(said)
        raise RequestFailed(said) if status >= 500 else RequestRefused(said)
