"""The rate of a worker's own interface: a network card's, as a token bucket in the kernel.

    eth0 --- root tbf: rate, a burst of one super-packet, and a queue of 10 ms

Unlike a WAN link's queue it may stand on the sending host: a real card of this rate holds TCP back the same way.
"""

from __future__ import annotations

from testbed.emulation.network.netlink import NetlinkRequest
from testbed.emulation.shaping import tc
from testbed.emulation.shaping.base import SUPER_PACKET_BYTES

#: What may wait for the card: ten milliseconds' worth, and never less than two super-packets.
QUEUE_S = 0.010


def limit_rate(interface: int, rate_bps: float) -> NetlinkRequest:
    """Let the interface (by index) send no faster than this; changed in place where it was limited before.

    A super-packet that is longer than the bucket is cut up into single frames, each of which then costs every hop on
    its way as much as the whole would have: a bucket of 64 KiB sent them all as frames at rates from 500 Mbit/s on.
    """
    limit = SUPER_PACKET_BYTES + max(int(rate_bps / 8 * QUEUE_S), 2 * SUPER_PACKET_BYTES)
    return tc.tbf(interface, tc.handle(1), rate_bps, SUPER_PACKET_BYTES, limit)
