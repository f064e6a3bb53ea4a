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
class GilbertElliott:
    """Loss in bursts: a chain of two states, each with its own loss (Gilbert 1960, Elliott 1963).

    All are probabilities in [0, 1]. Each packet is lost with `good` or `bad`, by the state it finds; then the chain
    goes from good to bad with `p`, from bad to good with `r`. Where bad loses all and good nothing, a burst is 1/r
    packets long in the mean. ValueError where the chain could never leave a state, or bad is not the worse one.
    """

    p: float
    r: float
    bad: float = 1.0
    good: float = 0.0

    def __post_init__(self) -> None:
        if not (0 < self.p <= 1 and 0 < self.r <= 1 and 0 <= self.good < self.bad <= 1):
            raise ValueError(f"no chain of two states: {self}")

    @property
    def mean(self) -> float:
        """The part of all packets that is lost: a part p/(p+r) of them finds the bad state."""
        return (self.p * self.bad + self.r * self.good) / (self.p + self.r)


@dataclass(frozen=True, slots=True)
class Opportunities:
    """Moments at which a link may send, each `bytes_each` bytes of frames; the last is also the period of a loop."""

    moments_ms: tuple[int, ...]
    bytes_each: float = MTU_FRAME_BYTES

    @property
    def mean_bps(self) -> float:
        """The rate over one lap."""
        return len(self.moments_ms) * self.bytes_each * 8e3 / self.moments_ms[-1]

    def scaled(self, factor: float) -> Opportunities:
        """As many opportunities, each for `factor` times the bytes.

        Leaving some out would change the pauses between them, and could not be done exactly; so the pattern in time
        stays, and a frame that needs more than one opportunity goes on in the next.
        """
        return replace(self, bytes_each=self.bytes_each * factor)


@dataclass(frozen=True, slots=True, eq=False)
class Delivery:
    """Opportunities that are replayed; 0 ms is at `began_s` on the monotonic clock.

    At the end `loop` begins again, `hold` leaves the link to its rate, `stop` sends no more. Two are equal when they
    are the same one: there are tens of thousands of moments, and states are compared at each tick.
    """

    opportunities: Opportunities
    began_s: float
    end: Literal["loop", "hold", "stop"] = "loop"


@dataclass(frozen=True, slots=True)
class LinkState:
    """What a directed link does to packets.

    `rate_bps` counts link-layer bits (frames without FCS), as tc does; a TCP flow's goodput at a rate r is
    r × 1448/1514. `delay_s` is one way. A link that is not `up` drops all. `loss` is a probability in [0, 1], drawn for
    each packet; with `bursts` these lose the packets, and `loss` is their mean (ValueError where it is not).
    Packets keep their order under `jitter_s`, unless `reorder` lets each take its own time.

    With a `delivery` a backend that can serves one opportunity after the other, and `rate_bps` is what they amount to
    about now; another takes the rate.
    """

    rate_bps: float
    delay_s: float
    jitter_s: float = 0.0
    loss: float = 0.0
    queue: Queue = Queue()
    up: bool = True
    bursts: GilbertElliott | None = None
    reorder: bool = False
    delivery: Delivery | None = None

    def __post_init__(self) -> None:
        if self.bursts is not None and self.loss != self.bursts.mean:
            raise ValueError(f"loss {self.loss} is not the mean {self.bursts.mean} of {self.bursts}")

    @property
    def queue_bytes(self) -> int:
        """The queue's limit at this rate and delay; of single opportunities, at their mean rate.

        A buffer does not shrink in an outage, and it is after one that it has to hold what came meanwhile.
        """
        rate_bps = self.delivery.opportunities.mean_bps if self.delivery else self.rate_bps
        return self.queue.limit_bytes(rate_bps, self.delay_s)

    def losing(self, loss: float) -> LinkState:
        """The same link with random loss of this probability, in place of whatever lost packets before."""
        return replace(self, loss=loss, bursts=None)

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
