"""A worker's own interface, limited as a card is."""

from __future__ import annotations

import pytest

from testbed.emulation.network.netlink import Netlink
from testbed.emulation.shaping.tc import limit_rate
from tests.emulation.shaping.path import Path, run
from tests.emulation.shaping.super_packet import super_packet

pytestmark = pytest.mark.system

#: The most that one packet of 64 KiB holds.
FRAMES = 44


@pytest.mark.parametrize("rate_bps", [10e6, 1e9, 10e9])
def test_a_super_packet_leaves_whole(path: Path, rate_bps: float) -> None:
    netlink = Netlink(path.namespace("source"))
    netlink.apply(limit_rate(netlink.index("left"), rate_bps))
    netlink.close()
    before = arrived(path)
    assert super_packet(path, FRAMES) == FRAMES
    assert arrived(path) == before + 1


def arrived(path: Path) -> int:
    """Packets that came to the first router."""
    return int(run(*path.command("left", "cat", "/sys/class/net/source/statistics/rx_packets")))
