"""What shaping a link means, whatever does it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import ClassVar, Self

from testbed.emulation.errors import EmulationError
from testbed.link import MTU_FRAME_BYTES, TCP_PAYLOAD_BYTES, LinkState


class ShapingError(EmulationError):
    """A link cannot be shaped. The text says what to do about it; the link is dead, never unshaped."""


#: The largest packet that segmentation offload makes, 64 KiB of payload, as a qdisc counts it: with the headers that
#: each of its frames will have, 66 bytes to 1,448.
SUPER_PACKET_BYTES = 65536 * MTU_FRAME_BYTES // TCP_PAYLOAD_BYTES

#: A rate is told by this much steady time: a few bursts would mostly tell of their ends.
RATE_KNOWN_S = 1.0


@dataclass(frozen=True, slots=True)
class Port:
    """Where a directed link is shaped: everything sent through one interface, a router's towards another as a
    rule.

    A link from a router to one worker leaves through a port of the site's bridge. There the kernel's packet
    filter sees only the bridge, so the port also says which, and the `address` of the worker: what is for
    that address is the link's, whether the router sent it or another worker of the site.
    """

    link: str
    netns: Path
    interface: str
    bridge: str | None = None
    address: str | None = None


@dataclass(frozen=True, slots=True)
class LinkCounters:
    """What a link has done since it was attached.

    Packets and bytes are of frames as on the wire: a super-packet counts as the frames it stands for, each
    with its own headers. `busy_s` is the time during which packets left one right behind another because a queue had
    formed. `steady_s` is the part of it in stretches long enough to tell a rate, `steady_bytes` what passed in that
    time and `allowed_bytes` the rate in force summed over it.
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
        """Relative error of the rate while the link was busy; None if it hardly ever was."""
        return self.steady_bytes / self.allowed_bytes - 1 if self.steady_s >= RATE_KNOWN_S else None


#: States that are to come: when each is to be in force, in seconds on the monotonic clock, in that order.
FutureStates = Sequence[tuple[float, LinkState]]


@dataclass(frozen=True, slots=True)
class Applied:
    """A state that was to come and is in force: when it was due, and how late that was, in seconds."""

    link: str
    due_s: float
    late_s: float


class Shaper(ABC):
    """Shapes all links of one network; a context manager, safe to call from any thread.

    A link whose state is not `up`, or whose rate is 0, drops what arrives; what it already holds drains.

    States that are to come are put in force by a process of their own, so that nothing that this one does makes them
    late: here any thread may hold the interpreter.
    """

    name: ClassVar[str]

    @property
    def realtime(self) -> bool | None:
        """Whether the process that shapes goes in front of all ordinary ones; None where it is the kernel."""
        return None

    @abstractmethod
    def attach(self, ports: Mapping[Port, LinkState]) -> None:
        """Start shaping ports, as one batch. From here to `detach` nothing passes them unshaped.

        Raises ShapingError when one of them cannot be shaped; then none of them is attached.
        """

    @abstractmethod
    def apply(self, states: Mapping[str, LinkState], coming: Mapping[str, FutureStates] | None = None) -> None:
        """Change the named links in place, as one batch; what waits is kept. KeyError: not attached.

        Of the links named in `coming`, what was to come is forgotten, and this comes instead.
        """

    @abstractmethod
    def expect(self, coming: Mapping[str, FutureStates]) -> None:
        """Have states come after those that are to come already. KeyError: not attached."""

    @abstractmethod
    def applied(self) -> list[Applied]:
        """What came to be in force since the last call."""

    @abstractmethod
    def detach(self, link: str) -> None:
        """Stop serving a link, if it is attached. Its port passes nothing until it is attached again."""

    @abstractmethod
    def counters(self) -> dict[str, LinkCounters]:
        """Totals of every attached link since its `attach`."""

    @abstractmethod
    def failure(self) -> str | None:
        """Why links are dead, or None while all is well."""

    @abstractmethod
    def close(self) -> None:
        """Detach every link and let go of what this holds. A second time does nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def distorted_by_offload(state: LinkState) -> bool:
    """Whether hosts that send over this link should do without segmentation offload.

    A backend loses and queues a super-packet of up to 45 frames as one. That is what makes high rates cheap,
    and averages hold; but where loss is random, a queue is counted in packets or each opportunity is for one
    packet, single frames are what was asked for.
    """
    return state.loss > 0 or state.queue.unit == "packets" or state.delivery is not None


def refuse_attached(ports: Iterable[Port], attached: Container[str]) -> None:
    """ShapingError when one of the ports is of a link that is attached already."""
    for port in ports:
        if port.link in attached:
            raise ShapingError(
                f"link {port.link} is already attached; detach it first", rule="attached", link=port.link
            )


def passes(state: LinkState) -> bool:
    """Whether a link in this state lets anything through."""
    return state.up and state.rate_bps > 0
