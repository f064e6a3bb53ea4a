"""The kernel's figures on a TCP connection's path, read from the sender's own socket, so no clock is shared."""

from __future__ import annotations

import socket
import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

#: `struct tcp_info` of linux/tcp.h up to tcpi_sndbuf_limited: 8 bytes of flags, 24 u32, 4 u64, 6 u32, 4 u64.
_LAYOUT = struct.Struct("<8x24I4Q6I4Q")
#: The same up to tcpi_rcv_ooopack, since 5.4: 2 u32, 2 u64 and 2 u32 more.
_OUT_OF_ORDER = struct.Struct("<8x24I4Q6I4Q2I2Q2II")
_MSS, _UNACKED, _LAST_ACK, _RTT, _WINDOW, _TOTAL_RETRANS = 2, 4, 12, 15, 18, 23
_PACING, _BYTES_ACKED, _UNSENT, _MIN_RTT, _DATA_SEGMENTS_IN = 24, 26, 30, 31, 32
_DELIVERY_RATE, _BUSY, _RWND_LIMITED = 34, 35, 36

#: `struct tcp_bbr_info` of linux/inet_diag.h: two halves of the bandwidth, the least round trip, two gains in 1/256.
_CC_INFO, _BBR_INFO, _GAIN_UNIT = 26, struct.Struct("<Q3I"), 256

#: BBR's gain while it probes for bandwidth. At start-up the gain is 2.89.
PROBING = 1.25

#: A round trip of more than QUEUE_FACTOR times the least one, plus QUEUE_S, has a queue in it. BBR alone keeps one more
#: bandwidth-delay product in flight, and on short paths round trips vary with the hosts' load.
QUEUE_FACTOR, QUEUE_S = 1.5, 0.001


@dataclass(frozen=True, slots=True)
class TcpInfo:
    """A connection's counters since it began, its queued bytes, and the kernel's estimates."""

    bytes_acked: int
    #: Seconds with unsent or unacknowledged bytes, without those in which the receiver's window was the limit.
    busy_s: float
    #: The smoothed round trip.
    rtt_s: float
    #: The least round trip over the kernel's window (`net.ipv4.tcp_min_rtt_wlen`, 300 s by default).
    min_rtt_s: float
    delivery_bytes_s: int
    retransmits: int
    #: Bytes that wait for the path.
    unsent_bytes: int = 0
    #: Packets that were sent and not acknowledged.
    unacked_packets: int = 0
    #: The most bytes that may be unacknowledged at a time.
    window_bytes: int = 0
    #: The pace of a congestion control that paces.
    pacing_bytes_s: int = 0
    #: Seconds since the newest acknowledgement.
    last_ack_s: float = 0.0

    @property
    def idle(self) -> bool:
        """True if all bytes were sent and acknowledged."""
        return not self.unsent_bytes and not self.unacked_packets

    def allowed_bytes_s(self, paced: bool) -> int:
        """Return the rate that TCP allows, in bytes/s; 0 if the path is the limit and not TCP.

        The window is a limit, and so is the pace if the congestion control is `paced`. Without pacing, TCP sends its
        window as fast as it can, so the path is the limit as soon as there is a queue.
        """
        if not self.min_rtt_s or (self.queues and not paced):
            return 0
        by_window = int(self.window_bytes / self.min_rtt_s)
        return min(by_window, self.pacing_bytes_s) if paced else by_window

    def burst_bytes_s(self, paced: bool) -> int:
        """Return the rate in bytes/s at which TCP sends the bytes that its window allows.

        The rate is the pace if the congestion control is `paced`. Otherwise it is `allowed_bytes_s`, because a queue
        spreads a burst that is not paced.
        """
        return self.pacing_bytes_s if paced else self.allowed_bytes_s(paced)

    @property
    def queues(self) -> bool:
        """True if packets wait on the path in either direction: round trips take much longer than the least one.

        Only acknowledgements show a round trip, and a queue drains while none come. So after a pause the last figure
        does not count. When it did, members took the queue of the previous round for one of the current round and held
        frames back without need: rounds over constant links took 1.15 s or 0.91 s, whichever they had begun with.
        """
        waited_s = self.rtt_s - self.min_rtt_s
        return self.rtt_s > QUEUE_FACTOR * self.min_rtt_s + QUEUE_S and self.last_ack_s <= waited_s

    def since(self, before: TcpInfo) -> TcpInfo:
        """Return the same figures with the counters since `before`."""
        return replace(
            self,
            bytes_acked=self.bytes_acked - before.bytes_acked,
            busy_s=max(self.busy_s - before.busy_s, 0.0),  # the kernel reads busy and limited time one after the other
            retransmits=self.retransmits - before.retransmits,
        )


NOTHING = TcpInfo(0, 0.0, 0.0, 0.0, 0, 0)


def together(connections: Sequence[TcpInfo]) -> TcpInfo:
    """Return the figures of several connections to one peer as if they were one.

    They are busy at the same time, so the busy time is that of the busiest.
    """
    moved = [info for info in connections if info.bytes_acked]
    return TcpInfo(
        sum(info.bytes_acked for info in moved),
        max((info.busy_s for info in moved), default=0.0),
        max((info.rtt_s for info in moved), default=0.0),
        min((info.min_rtt_s for info in moved), default=0.0),
        sum(info.delivery_bytes_s for info in moved),
        sum(info.retransmits for info in moved),
        sum(info.unsent_bytes for info in moved),
    )


def read(connection: socket.socket) -> TcpInfo:
    """Return the kernel's figures on a connection.

    Raises:
        OSError: The connection is closed.
    """
    raw = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _LAYOUT.size)
    fields = _LAYOUT.unpack(raw)
    return TcpInfo(
        bytes_acked=fields[_BYTES_ACKED],
        busy_s=max(fields[_BUSY] - fields[_RWND_LIMITED], 0) / 1e6,
        rtt_s=fields[_RTT] / 1e6,
        min_rtt_s=fields[_MIN_RTT] / 1e6,
        delivery_bytes_s=fields[_DELIVERY_RATE],
        retransmits=fields[_TOTAL_RETRANS],
        unsent_bytes=fields[_UNSENT],
        unacked_packets=fields[_UNACKED],
        window_bytes=fields[_WINDOW] * fields[_MSS],
        pacing_bytes_s=fields[_PACING],
        last_ack_s=fields[_LAST_ACK] / 1e3,
    )


def packets_in(connection: socket.socket) -> tuple[int, int]:
    """Return the data packets that a connection received, and those of them that came while an earlier one was missing.

    A packet counts when it arrives, also while an earlier one is missing. Both numbers are 0 before Linux 5.4.
    """
    raw = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _OUT_OF_ORDER.size)
    if len(raw) < _OUT_OF_ORDER.size:
        return 0, 0
    fields = _OUT_OF_ORDER.unpack(raw)
    return fields[_DATA_SEGMENTS_IN], fields[-1]


class BbrInfo(NamedTuple):
    """BBR's view of a connection's path."""

    #: The estimate of the path's rate.
    bytes_s: int
    #: The pace as a multiple of the estimate.
    gain: float

    @property
    def probing_gain(self) -> float:
        """The gain while BBR probes for bandwidth, one round trip of eight; otherwise 1, also at start-up."""
        return self.gain if 1.0 < self.gain <= PROBING else 1.0


def bbr(connection: socket.socket) -> BbrInfo | None:
    """Return BBR's view of a connection's path, or None if another congestion control is in force.

    Raises:
        OSError: The connection is closed.
    """
    raw = connection.getsockopt(socket.IPPROTO_TCP, _CC_INFO, _BBR_INFO.size)
    if not paces(connection) or len(raw) < _BBR_INFO.size:
        return None
    bytes_s, _, gain, _ = _BBR_INFO.unpack(raw)
    return BbrInfo(bytes_s, gain / _GAIN_UNIT)


def paces(connection: socket.socket) -> bool:
    """Return whether the connection's congestion control paces packets itself."""
    return _control(connection).startswith(b"bbr")


def begin_again(connection: socket.socket) -> None:
    """Let the congestion control forget what it knows of the path, and begin at start-up.

    The kernel does so when another congestion control is set; reno is the one that each kernel has. The connection
    would keep reno if its own control could not be set again, as where net.ipv4.tcp_allowed_congestion_control was
    changed since. So a new socket tries the control first.

    Raises:
        OSError: The connection is closed, or the kernel does not allow one of the two controls here. The connection
            keeps its own.
    """
    control = _control(connection)
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, control)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"reno")
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, control)


def _control(connection: socket.socket) -> bytes:
    return connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).rstrip(b"\0")
