"""What the kernel knows about a TCP connection's path, read from the sender's own socket: no clock is shared."""

from __future__ import annotations

import socket
import struct
from collections.abc import Sequence
from dataclasses import dataclass

#: struct tcp_info of linux/tcp.h up to tcpi_sndbuf_limited: 8 bytes of flags, 24 u32, 4 u64, 6 u32, 4 u64.
_LAYOUT = struct.Struct("<8x24I4Q6I4Q")
#: Up to tcpi_rcv_ooopack, since 5.4: 2 u32, 2 u64 and 2 u32 later.
_OUT_OF_ORDER = struct.Struct("<8x24I4Q6I4Q2I2Q2II")
_MSS, _LAST_ACK, _RTT, _WINDOW, _TOTAL_RETRANS = 2, 12, 15, 18, 23
_PACING, _BYTES_ACKED, _UNSENT, _MIN_RTT, _DATA_SEGMENTS_IN = 24, 26, 30, 31, 32
_DELIVERY_RATE, _BUSY, _RWND_LIMITED = 34, 35, 36

#: struct tcp_bbr_info of linux/inet_diag.h: two halves of the bandwidth, the least round trip, two gains in 1/256.
_CC_INFO, _BBR_INFO, _PACING_GAIN, _GAIN_UNIT = 26, struct.Struct("<5I"), 3, 256

#: BBR's gain when it looks for more. Starting up it has 2.89.
PROBING = 1.25

#: Round trips that take longer than this many times the least, and this much, have a queue in them. BBR by itself
#: keeps as much again on the way as the path holds; short paths differ by what hosts do meanwhile.
QUEUE_FACTOR, QUEUE_S = 1.5, 0.001


@dataclass(frozen=True, slots=True)
class TcpInfo:
    """Counters since the connection began, what waits now, and the kernel's estimates.

    `busy_s` counts the time with something unsent or unacknowledged, without that in which the receiver's window was
    what held it back. `unsent_bytes` wait for the path to take them; `window_bytes` may be unacknowledged at a time,
    and `pacing_bytes_s` is how fast a congestion control that paces lets them go. `rtt_s` is the smoothed round trip,
    `min_rtt_s` the least over the kernel's window (`net.ipv4.tcp_min_rtt_wlen`, 300 s by default); the newest
    acknowledgement came `last_ack_s` ago.
    """

    bytes_acked: int
    busy_s: float
    rtt_s: float
    min_rtt_s: float
    delivery_bytes_s: int
    retransmits: int
    unsent_bytes: int = 0
    window_bytes: int = 0
    pacing_bytes_s: int = 0
    last_ack_s: float = 0.0

    def allowed_bytes_s(self, paced: bool) -> int:
        """The most that TCP lets go: by its window and, where it is `paced`, by its pace.

        One that does not pace sends what its window takes as fast as it can, and 0 stands for no limit where there is a
        queue: there it is the path that holds it back.
        """
        if not self.min_rtt_s or (self.queues and not paced):
            return 0
        by_window = int(self.window_bytes / self.min_rtt_s)
        return min(by_window, self.pacing_bytes_s) if paced else by_window

    def burst_bytes_s(self, paced: bool) -> int:
        """How fast TCP lets go what its window takes: by its pace, where it is `paced`; else as `allowed_bytes_s`, for
        what it lets go as fast as it can is spread out by a queue."""
        return self.pacing_bytes_s if paced else self.allowed_bytes_s(paced)

    @property
    def queues(self) -> bool:
        """Whether packets wait on the path, there or back: round trips take much longer than they could.

        Round trips are known from acknowledgements alone. What waited when the last one came is gone after a pause:
        members that took the queue of the round before for one of theirs held back what nothing was in the way of, and
        rounds over constant links took 1.15 s or 0.91 s, whichever they had begun with.
        """
        waited_s = self.rtt_s - self.min_rtt_s
        return self.rtt_s > QUEUE_FACTOR * self.min_rtt_s + QUEUE_S and self.last_ack_s <= waited_s

    def since(self, before: TcpInfo) -> TcpInfo:
        """The same connection, with counters since `before`."""
        return TcpInfo(
            self.bytes_acked - before.bytes_acked,
            max(self.busy_s - before.busy_s, 0.0),  # the kernel counts on while it is asked for one after the other
            self.rtt_s,
            self.min_rtt_s,
            self.delivery_bytes_s,
            self.retransmits - before.retransmits,
            self.unsent_bytes,
            self.window_bytes,
            self.pacing_bytes_s,
            self.last_ack_s,
        )


NOTHING = TcpInfo(0, 0.0, 0.0, 0.0, 0, 0)


def together(connections: Sequence[TcpInfo]) -> TcpInfo:
    """Connections to one peer as if they were one. They are busy at the same time, so the busiest one's time counts."""
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
    """The kernel's figures for a connection; OSError once it is closed."""
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
        window_bytes=fields[_WINDOW] * fields[_MSS],
        pacing_bytes_s=fields[_PACING],
        last_ack_s=fields[_LAST_ACK] / 1e3,
    )


def packets_in(connection: socket.socket) -> tuple[int, int]:
    """Return how many packets with data came in on a connection, and before how many of them one was missing.

    Packets that came while one before them was missing are counted as they came, and not when that is mended. The
    second number is 0 where the kernel does not know it (before 5.4).
    """
    raw = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _OUT_OF_ORDER.size)
    if len(raw) < _OUT_OF_ORDER.size:
        return 0, 0
    fields = _OUT_OF_ORDER.unpack(raw)
    return fields[_DATA_SEGMENTS_IN], fields[-1]


def probing_gain(connection: socket.socket) -> float:
    """How many times its estimate of the path BBR lets go just now, where it looks for more: above 1 for a round trip
    of eight. 1 of any other congestion control, and while it starts up."""
    raw = connection.getsockopt(socket.IPPROTO_TCP, _CC_INFO, _BBR_INFO.size)
    if not paces(connection) or len(raw) < _BBR_INFO.size:
        return 1.0
    gain = _BBR_INFO.unpack(raw)[_PACING_GAIN] / _GAIN_UNIT
    return gain if 1.0 < gain <= PROBING else 1.0


def paces(connection: socket.socket) -> bool:
    """Whether the connection's congestion control spreads packets out by a pace of its own."""
    name = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16)
    return name.startswith(b"bbr")
