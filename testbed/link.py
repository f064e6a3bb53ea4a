"""The state of a directed link: what it does to packets at one moment.

Everything that speaks of links (topologies, traces, shaping, telemetry, planning) speaks in this value.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

#: Ethernet frame of a full-size IP packet, without FCS: what tc and the kernel's counters see.
MTU_FRAME_BYTES = 1514

#: Payload of a full-size TCP segment with timestamps: 1,500 bytes less 20 (IP), 20 (TCP) and 12 (timestamps).
TCP_PAYLOAD_BYTES = 1448

#: A queue below this many full-size frames would drop the bursts TCP itself makes (an initial window of 10,
#: doubled by slow start), whatever the product of rate and delay says.
MIN_QUEUE_FRAMES = 32


@dataclass(frozen=True, slots=True)
class Queue:
    """How much may wait before a link. `bdp` is relative, so it follows the link's rate and delay."""

    amount: float = 1.0
    unit: Literal["bdp", "packets", "bytes"] = "bdp"

    def limit_bytes(self, rate_bps: float, delay_s: float) -> int:
        """Bytes of frames that may wait, beside those in flight on the link.

        One BDP is `rate × 2·delay`: the round trip of the link alone, since a link does not know its paths.
        """
        if self.unit == "bytes":
            return int(self.amount)
        if self.unit == "packets":
            return int(self.amount * MTU_FRAME_BYTES)
        bdp = self.amount * rate_bps / 8 * 2 * delay_s
        return max(int(bdp), MIN_QUEUE_FRAMES * MTU_FRAME_BYTES)


@dataclass(frozen=True, slots=True)
class LinkState:
    """What a directed link does to packets.

    `rate_bps` counts link-layer bits (frames without FCS), as tc does; a TCP flow's goodput at a rate r is
    r × 1448/1514. `delay_s` is one way. `loss` is a probability in [0, 1]. A link that is not `up` drops all.
    """

    rate_bps: float
    delay_s: float
    jitter_s: float = 0.0
    loss: float = 0.0
    queue: Queue = Queue()
    up: bool = True

    @property
    def queue_bytes(self) -> int:
        """The queue's limit at this rate and delay."""
        return self.queue.limit_bytes(self.rate_bps, self.delay_s)

    def scaled(self, factor: float) -> LinkState:
        """The same link with its rate multiplied; delay, jitter and loss do not scale."""
        return replace(self, rate_bps=self.rate_bps * factor)


def link_name(source: str, target: str) -> str:
    """The name of the directed link from one site to another: `paris->tokyo`."""
    return f"{source}->{target}"


def link_ends(name: str) -> tuple[str, str]:
    """The source and the target of a directed link, by its name. ValueError when it is none."""
    source, target = name.split("->")
    return source, target
