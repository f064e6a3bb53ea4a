"""The state of a directed link: what it does to packets at one moment.

Everything that speaks of links (topologies, traces, shaping, telemetry, planning) speaks in this value.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from testbed.errors import DetailedError

#: Ethernet frame of a full-size IP packet, without FCS: what tc and the kernel's counters see.
MTU_FRAME_BYTES = 1514

#: Payload of a full-size TCP segment with timestamps: 1,500 bytes less 20 (IP), 20 (TCP) and 12 (timestamps).
TCP_PAYLOAD_BYTES = 1448

#: An error names this many of the links that there are.
SHOWN_LINKS = 100

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


def pair_name(a: str, b: str) -> str:
    """Return the name of a physical pair, which is both directions: `paris-tokyo`."""
    return f"{a}-{b}"


class NoSuchLink(DetailedError, LookupError):
    """No link has the name that was written, or several have; `link` is what was written."""


def written_link(written: object) -> str:
    """Return the name of a link that a user wrote as `a->b`, `a-b` or `[a, b]`. One of `a-b` stays as it is where a
    site's name has a dash: `find_link` knows the sites.

    Raises:
        ValueError: it is none of the three.
    """
    ends = written
    if isinstance(written, str):
        text = "".join(written.split())
        ends = text.split("->") if "->" in text else text.split("-")
        if text[:1] + text[-1:] == "[]":
            ends = text[1:-1].split(",")
        elif "->" not in text and len(ends) > 2 and all(ends):
            return text
    if isinstance(ends, list | tuple) and len(ends) == 2 and all(isinstance(end, str) and end for end in ends):
        return link_name(*ends)
    raise ValueError(f"{written!r} names no link | the two sites, as `paris->tokyo`, `paris-tokyo` or [paris, tokyo]")


def find_link(written: str | Sequence[str], known: Collection[str]) -> str:
    """Return which of the `known` links is written as `a->b`, `a-b` or `[a, b]`.

    Raises:
        NoSuchLink: none is, or `a-b` may be several, as sites' names have dashes.
    """
    if isinstance(written, str) and written in known:
        return written
    try:
        name = written_link(written)
    except ValueError as error:
        rule, _, remedy = str(error).partition(" | ")
        raise NoSuchLink(f"{rule}; write {remedy}", rule="not-a-link", given=written) from None
    found = [link for link in known if name in (link, pair_name(*link_ends(link)))]
    if len(found) == 1:
        return found[0]
    if found:
        raise NoSuchLink(f"{name} may be {' or '.join(sorted(found))}", rule="ambiguous-link", link=name, given=written)
    there = ", ".join(sorted(known)[:SHOWN_LINKS]) or "none"
    raise NoSuchLink(f"no link {name} is up; there are {there}", rule="unknown-link", link=name, given=written)


def link_ends(name: str) -> tuple[str, str]:
    """The source and the target of a directed link, by its name. ValueError when it is none."""
    source, target = name.split("->")
    return source, target
