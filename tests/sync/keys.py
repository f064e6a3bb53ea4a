"""The keys of members in tests, derived as a controller does."""

from __future__ import annotations

from collections.abc import Sequence

from testbed.controller.model.identity import Identities


def keys(member: str, members: Sequence[str]) -> dict[str, bytes]:
    """Return the keys that `member` shares with each other member, by name."""
    return {peer: bytes.fromhex(key) for peer, key in Identities(members, "a secret").keys(member).items()}
