"""A client of the controller's admin side over its Unix socket, for the run that owns the controller."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from testbed.api.client import UnixConnection
from testbed.controller.spec import Newcomer
from testbed.plan import Plan
from testbed.planning.view import Member, Pair, PhysicalLink, links_to_json, routes_to_json


class AdminError(RuntimeError):
    """The controller refused what was asked, or is not there."""


class AdminClient:
    """One request a connection; safe to use from several threads. AdminError when something is refused."""

    def __init__(self, path: Path, timeout_s: float = 10.0) -> None:
        self._path = path
        self._timeout_s = timeout_s

    def status(self) -> dict[str, Any]:
        """State, members, round, epoch, plan, swaps: see Controller.status."""
        return dict(self._ask("GET", "/status"))

    def plan(self) -> Plan:
        """The plan in force."""
        return Plan.from_json(self._ask("GET", "/plan"))

    def rounds(self, since: int = 0) -> list[dict[str, Any]]:
        """The complete rounds from number `since` on."""
        return list(self._ask("GET", f"/rounds?since={since}"))

    def change_network(self, links: Mapping[str, PhysicalLink], routes: Mapping[Pair, tuple[str, ...]]) -> None:
        """Tell of the whole underlay as it is now, after a swap or a link going down or up."""
        self._ask("POST", "/network", {"links": links_to_json(links), "routes": routes_to_json(routes)})

    def add_member(
        self,
        newcomer: Newcomer,
        members: Iterable[Member],
        links: Mapping[str, PhysicalLink],
        routes: Mapping[Pair, tuple[str, ...]],
    ) -> None:
        """Have one more member let in as soon as it comes: `members` are all of them, with it, in this network."""
        network = {"links": links_to_json(links), "routes": routes_to_json(routes)}
        everyone = [asdict(member) for member in members]
        self._ask("POST", "/members", {"newcomer": newcomer.model_dump(), "members": everyone, **network})

    def force(self, policy: str, options: Mapping[str, Any] | None = None) -> None:
        """Put `policy` in force now, whatever it saves. AdminError when it has no plan for this run."""
        self._ask("POST", "/plan", {"policy": policy, "options": dict(options or {})})

    def change_graph(self, kind: str) -> None:
        """Have members that train without a centre go over to another graph."""
        self._ask("POST", "/graph", {"kind": kind})

    def stop(self, reason: str) -> None:
        """Have all members leave; the run counts as failed unless it was done."""
        self._ask("POST", "/stop", {"reason": reason})

    def _ask(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        connection = UnixConnection(self._path, self._timeout_s)
        try:
            text = None if body is None else json.dumps(body)
            connection.request(method, path, text, {"Content-Type": "application/json"})
            reply = connection.getresponse()
            answer = reply.read()
        except (OSError, http.client.HTTPException) as error:
            raise AdminError(f"no answer from the controller at {self._path}: {error}") from error
        finally:
            connection.close()
        if reply.status != 200:
            raise AdminError(_detail(answer) or f"{method} {path}: {reply.status}: {answer.decode(errors='replace')}")
        return json.loads(answer)


def _detail(answer: bytes) -> str:
    """The reason in a refusal, in the controller's own words; empty where the answer is none of its own."""
    try:
        detail = json.loads(answer)["detail"]
    except (ValueError, LookupError, TypeError):
        return ""
    return detail if isinstance(detail, str) else ""
