"""The state of a directed link: what the link does to packets at one moment.

Topologies, traces, shaping, telemetry and planning all use this value for links.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from testbed.errors import DetailedError

#: The Ethernet frame of a full-size IP packet, without FCS, as tc and the kernel's counters count it.
MTU_FRAME_BYTES = 1514

#: Payload of a full-size TCP segment with timestamps: 1,500 bytes less 20 (IP), 20 (TCP) and 12 (timestamps).
TCP_PAYLOAD_BYTES = 1448

#: How many of the existing links an error names.
SHOWN_LINKS = 100

#: A queue below this many full-size frames would drop the bursts TCP itself makes (an initial window of 10,
#: doubled by slow start), whatever the product of rate and delay says.
MIN_QUEUE_FRAMES = 32


@dataclass(frozen=True, slots=True)
class CoDel:
    """Drops packets at the head of a queue whose packets have waited too long for too long (RFC 8289)."""

    #: The allowed wait in the queue, in seconds.
    target_s: float = 0.005
    #: The seconds for which every packet must wait longer than the target until one is dropped; a round trip or more.
    interval_s: float = 0.1


@dataclass(frozen=True, slots=True)
class Red:
    """Drops arriving packets at random, by the queue's mean length (Floyd and Jacobson 1993; not gentle).

    Between two lengths the probability rises from 0 to `probability`; from the upper one on each packet is dropped. The
    lengths are shares of the queue's limit, and follow it.
    """

    least: float = 0.1
    most: float = 0.3
    probability: float = 0.02


#: The weight of one packet in RED's mean length: near the paper's 0.002, and a power of two, as the kernel has it.
RED_WEIGHT_LOG = 9


@dataclass(frozen=True, slots=True)
class Queue:
    """The limit of the queue before a link, and its discipline. A limit in `bdp` follows the link's rate and delay."""

    amount: float = 1.0
    unit: Literal["bdp", "packets", "bytes"] = "bdp"
    #: The discipline that drops packets before the limit does; None for a tail-drop queue.
    discipline: CoDel | Red | None = None

    @property
    def discipline_name(self) -> str:
        """The discipline as a topology file names it: `droptail`, `codel` or `red`."""
        return "droptail" if self.discipline is None else type(self.discipline).__name__.lower()

    def discipline_record(self) -> dict[str, Any]:
        """Return the discipline's `name`, and its values in seconds and shares."""
        values = {} if self.discipline is None else asdict(self.discipline)
        return {"name": self.discipline_name, **values}

    def limit_bytes(self, rate_bps: float, delay_s: float) -> int:
        """Return the bytes of frames that may wait, without those in flight on the link: at least one full frame.

        One BDP is `rate × 2·delay`: the round trip of the link alone, since a link does not know the paths over it.
        """
        if self.unit == "bytes":
            return max(int(self.amount), MTU_FRAME_BYTES)
        if self.unit == "packets":
            return max(int(self.amount * MTU_FRAME_BYTES), MTU_FRAME_BYTES)
        bdp = self.amount * rate_bps / 8 * 2 * delay_s
        return max(int(bdp), MIN_QUEUE_FRAMES * MTU_FRAME_BYTES)


@dataclass(frozen=True, slots=True)
class GilbertElliott:
    """Loss in bursts: a chain of two states, each with its own loss (Gilbert 1960, Elliott 1963).

    All values are probabilities in [0, 1], and each packet takes a step of the chain. Where the bad state loses all and
    the good one nothing, a burst is 1/r packets long in the mean.

    Raises:
        ValueError: The chain could never leave a state, or the bad state does not lose more than the good one.
    """

    #: The change from the good state to the bad one.
    p: float
    #: The change from the bad state to the good one.
    r: float
    #: The loss in the bad state.
    bad: float = 1.0
    #: The loss in the good state.
    good: float = 0.0

    def __post_init__(self) -> None:
        if not (0 < self.p <= 1 and 0 < self.r <= 1 and 0 <= self.good < self.bad <= 1):
            raise ValueError(f"{self} is not a chain: p and r must be in (0, 1], and bad must lose more than good")

    @property
    def mean(self) -> float:
        """The share of all packets that is lost: a share p/(p+r) of them meets the bad state."""
        return (self.p * self.bad + self.r * self.good) / (self.p + self.r)


@dataclass(frozen=True, slots=True)
class Opportunities:
    """Moments at which a link may send `bytes_each` bytes of frames each; the last is also the period of a loop."""

    moments_ms: tuple[int, ...]
    bytes_each: float = MTU_FRAME_BYTES

    @property
    def mean_bps(self) -> float:
        """The mean rate over one lap, in bit/s."""
        return len(self.moments_ms) * self.bytes_each * 8e3 / self.moments_ms[-1]

    def scaled(self, factor: float) -> Opportunities:
        """Return the same moments, each for `factor` times the bytes.

        Omitting moments would change the pauses between them, and could not be exact. So the pattern in time stays, and
        a frame that needs more than one opportunity continues in the next.
        """
        return replace(self, bytes_each=self.bytes_each * factor)


@dataclass(frozen=True, slots=True, eq=False)
class Delivery:
    """A replay of a trace's opportunities to send, with the moment at which it began.

    Two replays are equal only if they are the same object: they have tens of thousands of moments, and states are
    compared at each tick.
    """

    opportunities: Opportunities
    #: The time of 0 ms, on the monotonic clock.
    began_s: float
    #: At the end `loop` begins again, `hold` goes on at the link's rate. With `stop` the link is
    #: taken down, and what waits leaves at its rate.
    end: Literal["loop", "hold", "stop"] = "loop"


@dataclass(frozen=True, slots=True)
class LinkState:
    """The effect of a directed link on packets.

    Raises:
        ValueError: `loss` is not the mean of `bursts`.
    """

    #: The rate in bit/s of frames (without FCS), as tc counts. A TCP flow's goodput at a rate r is r × 1448/1514.
    rate_bps: float
    #: The one-way delay in seconds.
    delay_s: float
    #: The most by which a packet's delay differs from `delay_s`, up or down, uniformly; in seconds.
    jitter_s: float = 0.0
    #: The probability in [0, 1] that a packet is lost.
    loss: float = 0.0
    queue: Queue = Queue()
    #: A link that is not up drops every packet.
    up: bool = True
    #: Loss in bursts, in the place of random loss; its mean is `loss`.
    bursts: GilbertElliott | None = None
    #: True if packets may overtake each other under jitter.
    reorder: bool = False
    #: Single opportunities to send, for a backend that can serve them one by one. For other backends, `rate_bps` is the
    #: present rate of these opportunities.
    delivery: Delivery | None = None

    def __post_init__(self) -> None:
        if self.bursts is not None and self.loss != self.bursts.mean:
            raise ValueError(
                f"the link's loss is {self.loss}, but its loss in bursts ({self.bursts}) is {self.bursts.mean} on "
                "average; pass that average as the loss"
            )

    @property
    def queue_bytes(self) -> int:
        """The limit of the queue at this rate and delay; for single opportunities, at their mean rate.

        A real buffer does not shrink in an outage: right after it, the buffer holds the packets that arrived meanwhile.
        """
        rate_bps = self.delivery.opportunities.mean_bps if self.delivery else self.rate_bps
        return self.queue.limit_bytes(rate_bps, self.delay_s)

    def losing(self, loss: float) -> LinkState:
        """Return the state with random loss of this probability, which replaces all earlier loss."""
        return replace(self, loss=loss, bursts=None)

    def scaled(self, factor: float) -> LinkState:
        """Return the state with its rate multiplied; delay, jitter and loss stay."""
        return replace(self, rate_bps=self.rate_bps * factor)


def link_name(source: str, target: str) -> str:
    """Return the name of the directed link from one site to another: `paris->tokyo`."""
    return f"{source}->{target}"


def pair_name(a: str, b: str) -> str:
    """Return the name of a physical pair of links, both directions, with the sites in this order: `paris-tokyo`."""
    return f"{a}-{b}"


class NoSuchLink(DetailedError, LookupError):
    """No link has the name that a user wrote, or several have it."""


def written_link(written: object) -> str:
    """Return the name of a link that a user wrote as `a->b`, `a-b` or `[a, b]`.

    `a-b` stays unchanged where a site's name has a dash: `find_link`, which knows the links, resolves it.

    Raises:
        ValueError: The text is none of the three.
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
    raise ValueError(
        f"{written!r} does not name a link | the two sites, as `paris->tokyo`, `paris-tokyo` or [paris, tokyo]"
    )


def find_link(written: str | Sequence[str], known: Collection[str]) -> str:
    """Return the one of the `known` links that a user wrote as `a->b`, `a-b` or `[a, b]`.

    Raises:
        NoSuchLink: No known link is meant, or `a-b` may mean several because sites' names have dashes.
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
        text = f"{name} may be {' or '.join(sorted(found))}; write one of them"
        raise NoSuchLink(text, rule="ambiguous-link", link=name, given=written)
    there = ", ".join(sorted(known)[:SHOWN_LINKS]) or "none"
    text = f"the network has no link {name}; write one of {there}"
    raise NoSuchLink(text, rule="unknown-link", link=name, given=written)


def link_ends(name: str) -> tuple[str, str]:
    """Return the source and the target of a directed link, by its name. ValueError: the text is no such name."""
    source, target = name.split("->")
    return source, target
