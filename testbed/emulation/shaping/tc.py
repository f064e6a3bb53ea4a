"""Traffic control: netlink requests for qdiscs and classes, and their statistics."""

from __future__ import annotations

import math
import socket
import struct
from dataclasses import dataclass

from testbed.emulation.network.netlink import CREATE, REPLACE, Netlink, NetlinkRequest, attribute, attributes
from testbed.emulation.shaping.base import SUPER_PACKET_BYTES
from testbed.link import MTU_FRAME_BYTES, RED_WEIGHT_LOG, GilbertElliott

ROOT = 0xFFFFFFFF
#: The kernel's unit of time in qdisc parameters (PSCHED_SHIFT is 6).
TICK_S = 64e-9

#: The queue of a worker's interface: ten milliseconds' worth, and never less than two super-packets.
QUEUE_S = 0.010

_RTM_NEWQDISC, _RTM_GETQDISC, _RTM_NEWTCLASS = 36, 38, 40
_TCA_KIND, _TCA_OPTIONS, _TCA_STATS2 = 1, 2, 7
_STATS_BASIC, _STATS_QUEUE, _STATS_PACKETS64 = 1, 3, 8
_NETEM_LOSS, _NETEM_RATE, _NETEM_LATENCY64, _NETEM_JITTER64 = 5, 6, 10, 11
_NETEM_LOSS_GE, _NLA_F_NESTED = 2, 0x8000
_HTB_PARMS, _HTB_INIT, _HTB_RATE64, _HTB_CEIL64 = 1, 2, 6, 7
_TBF_PARMS, _TBF_RATE64, _TBF_BURST = 1, 4, 6
_CODEL_TARGET, _CODEL_LIMIT, _CODEL_INTERVAL = 1, 2, 3
_RED_MOST_BYTES = (1 << 30) - 1
_RED_PARMS, _RED_STAB, _RED_MAX_P = 1, 2, 3
_ETHERNET_LINK_LAYER = 1
_MAX_U32 = 0xFFFFFFFF

_TCMSG = struct.Struct("=BxxxiIII")


def handle(major: int, minor: int = 0) -> int:
    """Return `major:minor` as one number."""
    return major << 16 | minor


def _qdisc(kind: str, index: int, own: int, parent: int, options: bytes, create: bool) -> NetlinkRequest:
    """Return a request that grafts a qdisc (`create`), replacing any other, or changes an existing one."""
    body = _TCMSG.pack(socket.AF_UNSPEC, index, own, parent, 0)
    body += attribute(_TCA_KIND, kind.encode() + b"\0") + attribute(_TCA_OPTIONS, options)
    return NetlinkRequest(_RTM_NEWQDISC, CREATE | REPLACE if create else 0, body)


def netem(
    index: int,
    own: int,
    *,
    delay_s: float,
    jitter_s: float,
    reorder: bool,
    loss: float | GilbertElliott,
    limit_packets: int,
    create: bool,
) -> NetlinkRequest:
    """Return the request to set delay and loss at the root of an interface.

    Under jitter, and after the delay has fallen, netem reorders packets unless it also has a rate, which makes it keep
    their order. So it gets the highest rate that its field holds, 34 Gbit/s, which adds 0.4 µs to a full frame, unless
    `reorder` asks for reordering. Of a Gilbert-Elliott chain, netem takes the loss in the good state and, for the bad
    state, the share that is not lost.
    """
    random = 0.0 if isinstance(loss, GilbertElliott) else loss
    options = struct.pack("=6I", 0, min(limit_packets, _MAX_U32), _share(random), 0, 0, 0)
    options += attribute(_NETEM_RATE, struct.pack("=IiIi", 0 if reorder else _MAX_U32, 0, 0, 0))
    if isinstance(loss, GilbertElliott):
        chain = struct.pack("=4I", *map(_share, (loss.p, loss.r, 1 - loss.bad, loss.good)))
        options += attribute(_NETEM_LOSS | _NLA_F_NESTED, attribute(_NETEM_LOSS_GE, chain))
    options += attribute(_NETEM_LATENCY64, struct.pack("=q", round(delay_s * 1e9)))
    options += attribute(_NETEM_JITTER64, struct.pack("=q", round(jitter_s * 1e9)))
    return _qdisc("netem", index, own, ROOT, options, create)


def _share(probability: float) -> int:
    """Return a probability as the kernel stores it."""
    return round(probability * _MAX_U32)


def htb(index: int, own: int, parent: int, default_class: int) -> NetlinkRequest:
    """Return the request for a classful rate limiter; unclassified packets go to the default class."""
    options = attribute(_HTB_INIT, struct.pack("=5I", 3, 10, default_class, 0, 0))
    return _qdisc("htb", index, own, parent, options, create=True)


def htb_class(
    index: int, own: int, parent: int, rate_bps: float, burst_bytes: float, *, create: bool = False
) -> NetlinkRequest:
    """Return the request for a class of the rate limiter, whose rate and ceiling are both `rate_bps`.

    `quantum` only matters between siblings. Without it the kernel derives one from the rate, and warns above 16 Mbit/s
    that it is big.
    """
    rate = max(int(rate_bps / 8), 1)
    spec = _rate(rate)
    ticks = min(round(burst_bytes / rate / TICK_S), _MAX_U32)
    options = attribute(_HTB_PARMS, spec + spec + struct.pack("=5I", ticks, ticks, MTU_FRAME_BYTES, 0, 0))
    if rate > _MAX_U32:
        wide = struct.pack("=Q", rate)
        options += attribute(_HTB_RATE64, wide) + attribute(_HTB_CEIL64, wide)
    body = _TCMSG.pack(socket.AF_UNSPEC, index, own, parent, 0)
    body += attribute(_TCA_KIND, b"htb\0") + attribute(_TCA_OPTIONS, options)
    return NetlinkRequest(_RTM_NEWTCLASS, CREATE if create else 0, body)


def limit_rate(interface: int, rate_bps: float) -> NetlinkRequest:
    """Limit the rate of a worker's own interface (by index), like a network card; change an earlier limit in place.

        eth0 --- root tbf: rate, a burst of one super-packet, and a queue of 10 ms

    Unlike a WAN link's queue, this one may be on the sending host: a real card of this rate holds TCP back in the same
    way.

    A super-packet that is longer than the bucket is split into single frames, each of which then costs every hop as
    much as the whole super-packet would: a bucket of 64 KiB split all of them at rates from 500 Mbit/s on.
    """
    rate = int(rate_bps / 8)
    limit = SUPER_PACKET_BYTES + max(int(rate_bps / 8 * QUEUE_S), 2 * SUPER_PACKET_BYTES)
    parms = _rate(rate) + _rate(0) + struct.pack("=3I", limit, 0, 0)
    options = attribute(_TBF_PARMS, parms) + attribute(_TBF_BURST, struct.pack("=I", SUPER_PACKET_BYTES))
    if rate > _MAX_U32:
        options += attribute(_TBF_RATE64, struct.pack("=Q", rate))
    return _qdisc("tbf", interface, handle(1), ROOT, options, create=True)


def _rate(bytes_per_second: int) -> bytes:
    """Return a rate as the kernel stores it; a rate too high for this field has an attribute of its own."""
    return struct.pack("=BBHhHI", 0, _ETHERNET_LINK_LAYER, 0, 0, 0, min(bytes_per_second, _MAX_U32))


def bfifo(index: int, own: int, parent: int, limit_bytes: int, *, create: bool) -> NetlinkRequest:
    """Return the request for a queue whose length is limited in bytes."""
    return _qdisc("bfifo", index, own, parent, struct.pack("=I", min(limit_bytes, _MAX_U32)), create)


def codel(
    index: int, own: int, parent: int, target_s: float, interval_s: float, limit_packets: int, *, create: bool
) -> NetlinkRequest:
    """Return the request for a queue with CoDel, whose length is limited in packets."""
    values = {
        _CODEL_TARGET: round(target_s * 1e6),
        _CODEL_INTERVAL: round(interval_s * 1e6),
        _CODEL_LIMIT: min(limit_packets, _MAX_U32),
    }
    options = b"".join(attribute(kind, struct.pack("=I", value)) for kind, value in values.items())
    return _qdisc("codel", index, own, parent, options, create)


def red(
    index: int,
    own: int,
    parent: int,
    *,
    least_bytes: float,
    most_bytes: float,
    probability: float,
    rate_bps: float,
    create: bool = False,
) -> NetlinkRequest:
    """Return the request for RED in front of a queue that is added below it.

    With a limit, the kernel would give it such a queue, and another with each change: what waits would be lost. The
    product of the upper length and the inverse weight must fit 32 bits, so beyond 4 MB packets weigh more.
    """
    most = min(max(round(most_bytes), 2), _RED_MOST_BYTES)
    least = min(max(round(least_bytes), 1), most - 1)
    weight_log = min(RED_WEIGHT_LOG, 31 - most.bit_length())
    packet_us = MTU_FRAME_BYTES * 8e6 / max(rate_bps, 1.0)
    cell_log, damping = _idle_damping(weight_log, packet_us)
    options = attribute(_RED_PARMS, struct.pack("=3I4B", 0, least, most, weight_log, 0, cell_log, 0))
    options += attribute(_RED_STAB, damping) + attribute(_RED_MAX_P, struct.pack("=I", _share(probability)))
    return _qdisc("red", index, own, parent, options, create)


def _idle_damping(weight_log: int, packet_us: float) -> tuple[int, bytes]:
    """Return how often RED's mean length halves while no packet comes: a table by idle time, and its step's logarithm.

    The table has 256 steps of a power of two of microseconds, and holds 31 halvings at most.
    """
    halvings_a_us = -math.log2(1 - 2.0**-weight_log) / packet_us
    cell_log = min(max(math.ceil(math.log2(31 / halvings_a_us / 255)), 0), 31)
    return cell_log, bytes(min(int((step << cell_log) * halvings_a_us), 31) for step in range(256))


@dataclass(frozen=True, slots=True)
class Statistics:
    """The counters of a qdisc.

    `drops` counts a super-packet once, `packets` counts its frames.
    """

    bytes: int = 0
    packets: int = 0
    drops: int = 0
    backlog_bytes: int = 0


def _statistics(attribute: bytes) -> Statistics:
    nested = attributes(attribute)
    size, packets = struct.unpack_from("=QI", nested[_STATS_BASIC])
    if wide := nested.get(_STATS_PACKETS64):  # the kernel adds it beyond 2^32 packets, from Linux 5.5 on
        (packets,) = struct.unpack_from("=Q", wide)
    _, backlog, drops, _, _ = struct.unpack_from("=5I", nested[_STATS_QUEUE])
    return Statistics(size, packets, drops, backlog)


class TrafficControl(Netlink):
    """A netlink socket that can also list qdiscs. An OSError carries the kernel's refusal."""

    def qdiscs(self) -> dict[tuple[int, int], tuple[int, Statistics]]:
        """Return parent and statistics of every qdisc, by interface index and handle."""
        found = {}
        for body in self.dump(_RTM_GETQDISC, _TCMSG.pack(0, 0, 0, 0, 0)):
            _, index, own, parent, _ = _TCMSG.unpack_from(body)
            found[index, own] = (parent, _statistics(attributes(body[_TCMSG.size :])[_TCA_STATS2]))
        return found
