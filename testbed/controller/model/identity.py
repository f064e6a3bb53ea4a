"""Who is who in a run: what a member shows over TCP, and the keys by which members know each other.

    secret of the run --HMAC(purpose, name)---> what the member of that name shows over TCP
          |         `--HMAC(purpose, names)--> what two members, and nobody else, know of each other
          `-- never leaves the controller: a member that knows its own can't reckon another's

Derived, so that a controller that is started anew with the same secret says the same.
"""

from __future__ import annotations

import hmac
import json
from collections.abc import Sequence


class Identities:
    """Those of the `members` of a run with this `secret`."""

    def __init__(self, members: Sequence[str], secret: str) -> None:
        self.members = tuple(members)
        self._secret = secret.encode()

    def add(self, member: str) -> None:
        """There is one more, which the others have yet to hear of."""
        self.members = (*self.members, member)

    def token(self, member: str) -> str:
        """What the member shows to be let in where its connection does not say who it is."""
        return self._derive("a member's token", member)

    def keys(self, member: str) -> dict[str, str]:
        """What the member greets each other one with, and is greeted with by it: hexadecimal, 32 bytes each."""
        return {other: self.key(member, other) for other in self._others(member)}

    def key(self, member: str, other: str) -> str:
        """What these two know of each other."""
        return self._derive("between members", *sorted((member, other)))

    def refusal(self, name: str, token: str, owner: str | None) -> str:
        """Why nobody is let in who says `name` where `owner` comes in, by its socket or its certificate, or over TCP
        without one (None); empty when it may be."""
        if name not in self.members:
            return f"{name!r} is not a member of this run: {', '.join(self.members)}"
        if owner is not None and owner != name:
            return (
                f"{owner!r} says hello as {name!r}: it came in at the socket, or with the certificate, of {owner!r}, "
                "which is that member's alone"
            )
        if owner is None and not hmac.compare_digest(token.encode(errors="replace"), self.token(name).encode()):
            return (
                f"who says hello as {name!r} does not have the token of {name!r}: copy it from the controller's secrets"
            )
        return ""

    def _others(self, member: str) -> list[str]:
        return [other for other in self.members if other != member]

    def _derive(self, purpose: str, *names: str) -> str:
        return hmac.digest(self._secret, json.dumps([purpose, *names]).encode(), "sha256").hex()
