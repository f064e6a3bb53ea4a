"""What the kernel knows about a TCP connection's path, read from the sender's own socket: no clock is shared."""

from __future__ import annotations

import socket
import struct
from collections.abc import Sequence
from dataclasses import dataclass

#: struct tcp_info of linux/tcp.h up to tcpi_sndbuf_limited: 8 bytes of flags, 24 u32, 4 u64, 6 u32, 4 u64.
_LAYOUT = struct.Struct("<8x24I4Q6I4Q")
_RTT, _TOTAL_RETRANS, _BYTES_ACKED, _UNSENT, _MIN_RTT = 15, 23, 26, 30, 31
_DELIVERY_RATE, _BUSY, _RWND_LIMITED = 34, 35, 36


#: Round trips that take longer than this many times the least, and this much, have a queue in them. BBR by itself
#: keeps as much again on the way as the path holds; short paths differ by what hosts do meanwhile.
QUEUE_FACTOR, QUEUE_S = 1.5, 0.001


@dataclass(frozen=True, slots=True)
class TcpInfo:
    """Counters since the connection began, what waits now, and the kernel's estimates.

    `busy_s` counts the time with something unsent or unacknowledged, without that in which the receiver's window was
    what held it back. `unsent_bytes` wait for the path to take them. `rtt_s` is the smoothed round trip, `min_rtt_s`
    the least over the kernel's window (`net.ipv4.tcp_min_rtt_wlen`, 300 s by default).
    """

    bytes_acked: int
    busy_s: float
    rtt_s: float
    min_rtt_s: float
    delivery_bytes_s: int
    retransmits: int
    unsent_bytes: int = 0

    @property
    def queues(self) -> bool:
        """Whether packets wait on the path, there or back: round trips take much longer than they could."""
        return self.rtt_s > QUEUE_FACTOR * self.min_rtt_s + QUEUE_S

    def since(self, before: TcpInfo) -> TcpInfo:
        """The same connection, with counters since `before`."""
        return TcpInfo(
            self.bytes_acked - before.bytes_acked,
            self.busy_s - before.busy_s,
            self.rtt_s,
            self.min_rtt_s,
            self.delivery_bytes_s,
            self.retransmits - before.retransmits,
            self.unsent_bytes,
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
    )
