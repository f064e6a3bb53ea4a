"""Identities of a run's members: the token that a member shows over TCP, and the keys shared by pairs of members.

    secret of the run --HMAC(purpose, name)---> the token of the member of that name
          |         `--HMAC(purpose, names)--> the key that two members share, and nobody else
          `-- never leaves the controller: a member that knows its own token can't compute another's

Tokens and keys are derived, so that a controller that is restarted with the same secret has the same ones.
"""

from __future__ import annotations

import hmac
import json
from collections.abc import Sequence


class Identities:
    """Tokens and keys of the `members` of a run, derived from its `secret`."""

    def __init__(self, members: Sequence[str], secret: str) -> None:
        self.members = tuple(members)
        self._secret = secret.encode()

    def add(self, member: str) -> None:
        """Add a member. The other members get its key with the plan that takes it in."""
        self.members = (*self.members, member)

    def token(self, member: str) -> str:
        """Return the token that the member shows where its connection does not identify it."""
        return self._derive("a member's token", member)

    def keys(self, member: str) -> dict[str, str]:
        """Return the key that the member shares with each other member, 32 bytes in hexadecimal."""
        return {other: self.key(member, other) for other in self.members if other != member}

    def key(self, member: str, other: str) -> str:
        """Return the key that two members share, 32 bytes in hexadecimal."""
        return self._derive("between members", *sorted((member, other)))

    def refusal(self, name: str, token: str, owner: str | None) -> str:
        """Return why a connection may not join as a member; empty if it may.

        Args:
            name: The member's name, as its hello has it.
            token: The token that its hello shows.
            owner: The member that the socket or the certificate belongs to; None over TCP without a certificate.
        """
        if name not in self.members:
            return f"{name!r} is not a member of this run; its members are {', '.join(self.members)}"
        if owner is not None and owner != name:
            return (
                f"the connection uses the socket or the certificate of {owner!r}, and its hello names {name!r}: "
                f"use those of {name!r}"
            )
        if owner is None and not hmac.compare_digest(token.encode(errors="replace"), self.token(name).encode()):
            return (
                f"the hello as {name!r} does not show the token of {name!r}: copy {name}.token from the controller's "
                "folder of secrets to this machine"
            )
        return ""

    def _derive(self, purpose: str, *names: str) -> str:
        return hmac.digest(self._secret, json.dumps([purpose, *names]).encode(), "sha256").hex()
