"""The settings of a member's connections to its peers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from testbed.sockets import Tls

#: The longest wait in seconds for a thread to end. Threads end at once; this limit is for a machine that is too busy.
CLOSE_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class TransportSettings:
    """How one member connects to its peers."""

    #: The member's name.
    member: str
    #: The keys that the member shares with each other member, by name. Keys of members that join later are added.
    keys: Mapping[str, bytes] = field(repr=False)
    #: Seconds after which a connection is given up.
    timeout_s: float
    #: Connections to each peer.
    streams: int = 1
    #: The congestion control; empty for the kernel's default.
    congestion: str = ""
    #: See Greeting.
    generation: int = 0
    #: This member's certificate. With it connections are encrypted, and the peer must show a certificate of its name.
    tls: Tls | None = field(default=None, repr=False, compare=False)
