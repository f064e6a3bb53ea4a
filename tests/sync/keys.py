"""The keys of members in tests, as a controller derives them."""

from __future__ import annotations

from collections.abc import Sequence

from testbed.controller.model.identity import Identities


def keys(member: str, members: Sequence[str]) -> dict[str, bytes]:
    """What `member` has in common with each other one."""
    return {peer: bytes.fromhex(key) for peer, key in Identities(members, "a secret").keys(member).items()}
