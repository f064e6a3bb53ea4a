"""The rate over time of a capture's packets: of all, or of one flow."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address, ip_address
from itertools import accumulate
from pathlib import Path

from testbed.trace.forms import ImportedTrace
from testbed.trace.forms.packets import Packet, read_packets
from testbed.trace.resample import resample
from testbed.trace.text import open_bytes
from testbed.trace.trace import TraceError, naming_file

TCP, UDP = 6, 17
EXAMPLE = "`10.0.0.1:443->10.0.0.2:51000`, `10.0.0.1->10.0.0.2`, or `*->[2001:db8::2]:443`"

Address = IPv4Address | IPv6Address


@dataclass(frozen=True, slots=True)
class End:
    """One end of a flow: an address and a port, each None where any will do."""

    address: Address | None = None
    port: int | None = None

    @classmethod
    def parse(cls, text: str) -> End:
        """Return the end that a text names: `10.0.0.1:443`, `[2001:db8::1]:443`, `*:443`, or one of them without port.

        Raises ValueError where the text is none of these.
        """
        address, colon, port = text.rpartition(":") if text.count(":") == 1 or "]:" in text else (text, "", "")
        if colon and not (port.isascii() and port.isdecimal() and 0 < int(port[:6]) < 65_536):
            raise ValueError(f"{port!r} is not a port")
        address = address.removeprefix("[").removesuffix("]")
        return cls(None if address == "*" else ip_address(address), int(port) if colon else None)

    def matches(self, other: End) -> bool:
        """Return whether a packet's end, `other`, is this one. An address or a port of None matches any."""
        return self.address in (None, other.address) and self.port in (None, other.port)

    def __str__(self) -> str:
        address = "*" if self.address is None else str(self.address)
        if self.port is None:
            return address
        return f"[{address}]:{self.port}" if ":" in address else f"{address}:{self.port}"


@dataclass(frozen=True, slots=True)
class Flow:
    """The packets from one end to another, in one direction."""

    source: End
    target: End

    @classmethod
    def parse(cls, text: str) -> Flow:
        """Return the flow that is written `A->B`. Raises TraceError where the text is no flow."""
        source, arrow, target = text.partition("->")
        try:
            if not arrow:
                raise ValueError("it has no `->`")
            return cls(End.parse(source.strip()), End.parse(target.strip()))
        except ValueError as error:
            wrong = f"{text[:80]!r} is not a flow: {error}; write it such as {EXAMPLE}"
            raise TraceError(wrong, rule="flow", given=text) from None

    @classmethod
    def of_packet(cls, ip: bytes) -> Flow | None:
        """Return the flow of a packet, given from its IP header on; None where too little of the packet is there."""
        version = ip[0] >> 4 if ip else 0
        if version == 4 and len(ip) >= 20:
            begin, protocol, addresses = (ip[0] & 15) * 4, ip[9], ip[12:20]
            whole = (ip[6] & 0x1F) == 0 and ip[7] == 0  # later fragments begin with data
        elif version == 6 and len(ip) >= 40:
            begin, protocol, addresses, whole = 40, ip[6], ip[8:40], True
        else:
            return None
        has_ports = whole and protocol in (TCP, UDP) and len(ip) >= begin + 4
        return _flow(addresses, ip[begin : begin + 4] if has_ports else b"")

    def matches(self, other: Flow) -> bool:
        """Return whether a packet's flow, `other`, is this one. An address or a port of None matches any."""
        return self.source.matches(other.source) and self.target.matches(other.target)

    def __str__(self) -> str:
        return f"{self.source}->{self.target}"


@lru_cache(maxsize=2**16)
def _flow(addresses: bytes, ports: bytes) -> Flow:
    """Return the flow of a header's bytes, whose halves are the two ends.

    A capture has few flows and many packets of each, so the flows are cached.
    """
    half = len(addresses) // 2
    source, target = (ip_address(each) for each in (addresses[:half], addresses[half:]))
    if not ports:
        return Flow(End(source), End(target))
    return Flow(End(source, int.from_bytes(ports[:2], "big")), End(target, int.from_bytes(ports[2:], "big")))


#: The length of a row where none is asked for.
STEP_S = 0.1
#: The most packets of a capture; this many take a minute, and a quarter of a gigabyte.
MOST_PACKETS = 10_000_000
#: The number of flows that describe a capture.
LARGEST = 5


@dataclass(frozen=True, slots=True)
class FrameArrivals:
    """Frames by the time of their arrival, in seconds from the first; `total[i]` bytes came before the i-th."""

    times_s: Sequence[float]
    total: Sequence[int]

    @property
    def duration_s(self) -> float:
        """The time of the last frame, in seconds from the first."""
        return self.times_s[-1]

    def by(self, time_s: float) -> float:
        """Return the bytes of frames that came before `time_s`; from `duration_s` on, those of all frames."""
        return float(self.total[-1] if time_s >= self.duration_s else self.total[bisect_left(self.times_s, time_s)])


@dataclass(frozen=True, slots=True)
class Capture:
    """The frames of a capture, or of one flow in it, by time; and the largest of its flows."""

    arrivals: FrameArrivals
    #: The number of these frames.
    packets: int
    #: The largest of all the capture's flows, with their shares of the bytes.
    largest: tuple[tuple[Flow, float], ...]


def import_capture(path: Path, step_s: float = STEP_S, flow: Flow | None = None) -> list[ImportedTrace]:
    """Return the rate of a capture's packets, or of the packets of one flow, in rows of `step_s` seconds."""
    with naming_file(path):
        found = read_capture(path, flow)
        made = resample(found.arrivals, step_s)
    counted = f"{found.packets} packets of {flow or 'all flows'}, in steps of {step_s:g} s"
    largest = ", ".join(f"{one} {share:.0%}" for one, share in found.largest)
    comments = (counted, *([f"largest flows, of all bytes: {largest}"] if largest else []))
    return [ImportedTrace(made.trace, comments).named_after(path, "pcap")]


def read_capture(path: Path, wanted: Flow | None = None) -> Capture:
    """Return the packets in a file: of the wanted flow, or all. Raises TraceError where the file can't be read."""
    try:
        with open_bytes(path) as file:
            return arrivals_of(read_packets(file), wanted)
    except FileNotFoundError:
        raise TraceError("the capture does not exist; check the path", rule="missing") from None
    except (OSError, ValueError) as error:
        if isinstance(error, TraceError):
            raise
        raise TraceError(f"the capture can't be read: {error}", rule="unreadable") from None


def arrivals_of(packets: Iterable[Packet], wanted: Flow | None = None) -> Capture:
    """Return the packets of the wanted flow, or all. Raises TraceError where they are too few or too many."""
    times, sizes, flows = array("q"), array("q"), Counter[Flow]()
    for number, packet in enumerate(packets, 1):
        if number > MOST_PACKETS:
            text = f"the capture has over {MOST_PACKETS} packets; take a part of it (`editcap -i 600 FILE PART`)"
            raise TraceError(text, rule="too-many")
        flow = Flow.of_packet(packet.ip)
        if flow is not None:
            flows[flow] += packet.frame_bytes
        if wanted is None or (flow is not None and wanted.matches(flow)):
            times.append(packet.time_ns)
            sizes.append(packet.frame_bytes)
    if wanted is not None and not times:
        there = ", ".join(str(flow) for flow, _ in flows.most_common(LARGEST)) or "none"
        text = f"the capture has no packet of {wanted}; its largest flows are {there}"
        raise TraceError(text, rule="no-packet", given=there)
    if len(times) < 2 or min(times) == max(times):
        text = f"the capture has {len(times)} packets and no time between them; take a longer capture"
        raise TraceError(text, rule="no-time", given=len(times))
    order = sorted(range(len(times)), key=times.__getitem__)
    began_ns = times[order[0]]
    all_bytes = sum(flows.values())
    largest = tuple((flow, count / all_bytes) for flow, count in flows.most_common(LARGEST) if count)
    arrivals = FrameArrivals(
        array("d", ((times[number] - began_ns) / 1e9 for number in order)),
        array("q", accumulate((sizes[number] for number in order), initial=0)),
    )
    return Capture(arrivals, len(times), largest)
