"""How a member's connections to its peers are made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from testbed.sockets import Tls

#: Threads end at once when they are told to, or their connection ends; this is for a machine that has no time for them.
CLOSE_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class TransportSettings:
    """Connections of `member` are given up after `timeout_s`; `streams` lead to each peer. `keys` are those that it has
    in common with each other member; of one that comes later, from when it is told of that.

    `congestion` names the congestion control; the kernel's default when it is empty. `generation`: see Greeting. With
    `tls` connections are encrypted, and who is at the other end shows a certificate with its name.
    """

    member: str
    keys: Mapping[str, bytes] = field(repr=False)
    timeout_s: float
    streams: int = 1
    congestion: str = ""
    generation: int = 0
    tls: Tls | None = field(default=None, repr=False, compare=False)
