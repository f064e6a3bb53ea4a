"""The keys of members in tests, derived as a controller does, and settings with them."""

from __future__ import annotations

from collections.abc import Sequence

from testbed.controller.model.identity import Identities
from testbed.sync.transport.handshake import TransportSettings
from tests.waiting import PATIENCE_S

#: Members of tests of connections; mallory tries to pass for another one.
MEMBERS = ("a", "b", "mallory")


def keys(member: str, members: Sequence[str]) -> dict[str, bytes]:
    """Return the keys that `member` shares with each other member, by name."""
    return {peer: bytes.fromhex(key) for peer, key in Identities(members, "a secret").keys(member).items()}


def settings_of(member: str) -> TransportSettings:
    """Return the settings of one of MEMBERS."""
    return TransportSettings(member, keys(member, MEMBERS), PATIENCE_S)
