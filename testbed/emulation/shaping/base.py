"""The interface of link shaping, independent of the backend."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Self

from testbed.emulation.errors import EmulationError
from testbed.link import MTU_FRAME_BYTES, TCP_PAYLOAD_BYTES, LinkState


class ShapingError(EmulationError):
    """A link cannot be shaped. The text says what to do; the link passes nothing rather than unshaped packets."""


#: The largest packet of segmentation offload (64 KiB of payload) as a qdisc counts it: with the headers that each of
#: its frames will have, 66 bytes for 1,448 of payload.
SUPER_PACKET_BYTES = 65536 * MTU_FRAME_BYTES // TCP_PAYLOAD_BYTES

#: The steady time in seconds after which a rate is known: in less time, the ends of bursts dominate.
RATE_KNOWN_S = 1.0


@dataclass(frozen=True, slots=True)
class Port:
    """The place where a directed link is shaped: all packets sent through one interface, usually a router's.

    A link from a router to one worker leaves through a port of the site's bridge. There the kernel's packet filter sees
    only the bridge. So the port also names the `bridge` and the worker's `address`: packets for that address are the
    link's, whether the router or another worker of the site sent them.
    """

    link: str
    netns: Path
    interface: str
    bridge: str | None = None
    address: str | None = None


@dataclass(frozen=True, slots=True)
class LinkCounters:
    """A link's totals since it was attached.

    Packets and bytes are those of frames on the wire: a super-packet counts as its frames, each with its own headers.
    A super-packet that the backend netem drops counts once.

    Attributes:
        dropped_queue: The packets that the queue dropped: it was full, or its discipline dropped them.
        dropped_loss: The packets that random loss dropped, or that arrived while the link was down.
        backlog_bytes: The bytes that wait in the queue now.
        busy_s: The seconds in which packets left back to back because a queue had formed.
        steady_s: The part of `busy_s` in stretches long enough to measure a rate.
        steady_bytes: The bytes that passed during `steady_s`.
        allowed_bytes: The rate in force, summed over `steady_s`.
    """

    packets: int = 0
    bytes: int = 0
    dropped_queue: int = 0
    dropped_loss: int = 0
    backlog_bytes: int = 0
    busy_s: float = 0.0
    steady_s: float = 0.0
    steady_bytes: int = 0
    allowed_bytes: float = 0.0

    @property
    def rate_error(self) -> float | None:
        """The relative error of the rate while the link was busy; None if it hardly ever was."""
        return self.steady_bytes / self.allowed_bytes - 1 if self.steady_s >= RATE_KNOWN_S else None


#: Future states in order, each with the moment at which it takes effect, in seconds on the monotonic clock.
FutureStates = Sequence[tuple[float, LinkState]]


@dataclass(frozen=True, slots=True)
class Applied:
    """A future state that took effect: the moment at which it was due, and how many seconds late it was."""

    link: str
    due_s: float
    late_s: float


class Shaper(ABC):
    """Shapes all links of one network. A context manager; any thread may call it.

    A link that is down, or whose rate is 0, drops what arrives; packets already in it drain.

    Future states are put in force by a separate process, so that nothing in this process makes them late: here any
    thread may hold the interpreter's lock.
    """

    #: The name of the backend.
    name: str
    #: The most jitter in seconds that the backend gives a link.
    most_jitter_s: float = inf
    #: The least rate in bit/s, above 0, of a trace whose rate changes.
    least_row_bps: float = 0.0

    @property
    @abstractmethod
    def realtime(self) -> bool:
        """True if the process that puts future states in force has real-time priority."""

    @abstractmethod
    def attach(self, ports: Mapping[Port, LinkState]) -> None:
        """Start shaping ports, as one batch. Until `detach`, nothing passes them unshaped.

        Raises:
            ShapingError: A port cannot be shaped. None of them is attached.
        """

    @abstractmethod
    def apply(self, states: Mapping[str, LinkState], coming: Mapping[str, FutureStates] | None = None) -> None:
        """Change links in place, as one batch; queued packets are kept.

        Args:
            states: The new state of each link.
            coming: Future states that replace all earlier ones of these links.

        Raises:
            KeyError: A link is not attached.
        """

    @abstractmethod
    def expect(self, coming: Mapping[str, FutureStates]) -> None:
        """Append future states to those already queued. Raises KeyError for a link that is not attached."""

    @abstractmethod
    def applied(self) -> list[Applied]:
        """Return the future states that took effect since the last call."""

    @abstractmethod
    def detach(self, link: str) -> None:
        """Stop serving a link, if it is attached. Its port passes nothing until it is attached again."""

    @abstractmethod
    def counters(self) -> dict[str, LinkCounters]:
        """Return the totals of every attached link since its `attach`."""

    @abstractmethod
    def failure(self) -> str | None:
        """Return why links are dead, or None if all is well."""

    @abstractmethod
    def close(self) -> None:
        """Detach every link and release all resources. Calling it twice is allowed."""

    def check_jitter(self, link: str, jitter_s: float) -> None:
        """Raise ShapingError if the backend can't give a link this much jitter."""
        if jitter_s > self.most_jitter_s:
            raise ShapingError(
                f"link {link} has a jitter of {jitter_s:g} s, and {self.name} gives {self.most_jitter_s:.3f} s at "
                "most: write less, or use the userspace backend",
                rule="jitter",
                link=link,
            )

    def check_rows(self, link: str, rates_bps: Iterable[float]) -> None:
        """Raise ShapingError if the backend can't follow a trace with these rates."""
        rates = {rate for rate in rates_bps if rate > 0}
        if len(rates) > 1 and min(rates) < self.least_row_bps:
            raise ShapingError(
                f"link {link} has a trace with a rate of {min(rates):g} bit/s, after which {self.name} lets nothing "
                f"pass for {8 * MTU_FRAME_BYTES / min(rates):.1f} s: write a loss of 100 % where the link carries "
                f"nothing, at least {self.least_row_bps / 1e3:.1f} kbit/s elsewhere, or use the userspace backend",
                rule="rate",
                link=link,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def distorted_by_offload(state: LinkState) -> bool:
    """Return whether hosts that send over this link should not use segmentation offload.

    A backend loses and queues a super-packet of up to 45 frames as one packet. That makes high rates cheap, and
    averages hold. But where loss is random, a queue is counted in packets, a discipline drops packets before the queue
    is full, or each delivery opportunity is for one packet, single frames are needed.
    """
    queue = state.queue
    return state.loss > 0 or queue.unit == "packets" or queue.discipline is not None or state.delivery is not None


def refuse_attached(ports: Iterable[Port], attached: Container[str]) -> None:
    """Raise ShapingError if one of the ports' links is already attached."""
    for port in ports:
        if port.link in attached:
            raise ShapingError(
                f"link {port.link} is already attached; detach it first", rule="attached", link=port.link
            )


def passes(state: LinkState) -> bool:
    """Return whether a link in this state is up with a rate above 0. Its loss does not count."""
    return state.up and state.rate_bps > 0
