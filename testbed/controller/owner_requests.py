"""The requests of the run that owns a controller, beside the requests of users (`testbed.api.requests`)."""

from __future__ import annotations

from typing import Any

from testbed.api.requests import REQUESTS, Request
from testbed.controller.model.spec import Newcomer


class ReadStatus(Request):
    """Read the controller's state, members, round, plan and swaps: see `outcome.status`."""


class ReadRounds(Request):
    """Read the complete rounds from number `since` on."""

    since: int = 0


class ChangeNetwork(Request):
    """Change the network: the whole current one, after a swap or after a link went down or up.

    Attributes:
        links: `{name: {rate_bps, delay_s, up}}`.
        routes: `[[from, to, [link]]]`.
    """

    links: dict[str, dict[str, Any]]
    routes: list[Any]


class AddMember(ChangeNetwork):
    """Add a member to the run, which joins as soon as it connects.

    Attributes:
        newcomer: The member and its job.
        members: All members, the new one included, in the form of a view.
    """

    newcomer: Newcomer
    members: list[dict[str, Any]]


#: The requests that an owner may make.
OWNER_REQUESTS: tuple[type[Request], ...] = (ReadStatus, ReadRounds, ChangeNetwork, AddMember, *REQUESTS)
