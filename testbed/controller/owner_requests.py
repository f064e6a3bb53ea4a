"""What the run that owns a controller asks of it, beside the requests that people make (`testbed.api.requests`)."""

from __future__ import annotations

from typing import Any

from testbed.api.requests import REQUESTS, Request
from testbed.controller.model.spec import Newcomer


class ReadStatus(Request):
    """The controller's state, members, round, plan and swaps: see `outcome.status`."""


class ReadRounds(Request):
    """The complete rounds from number `since` on."""

    since: int = 0


class ChangeNetwork(Request):
    """The whole network as it is now, after a swap or a link going down or up.

    Attributes:
        links: `{name: {rate_bps, delay_s, up}}`.
        routes: `[[from, to, [link]]]`.
    """

    links: dict[str, dict[str, Any]]
    routes: list[Any]


class AddMember(ChangeNetwork):
    """Let one more member in as soon as it comes. `members` are all of them, with it, as a view has them."""

    newcomer: Newcomer
    members: list[dict[str, Any]]


#: The requests that an owner may make.
OWNER_REQUESTS: tuple[type[Request], ...] = (ReadStatus, ReadRounds, ChangeNetwork, AddMember, *REQUESTS)
