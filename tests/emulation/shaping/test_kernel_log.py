"""The kernel's log while it shapes; in a kernel of our own, whose log nobody else writes to."""

from __future__ import annotations

import pytest

from testbed.emulation.shaping import open_shaper
from testbed.link import LinkState
from tests.emulation.shaping.path import Path, run

pytestmark = pytest.mark.guest

RATES = (64e3, 1e6, 16e6, 100e6, 1e9, 10e9)
PLAIN_CLASS = ("parent", "8:", "classid", "8:1", "htb", "rate", "1gbit")


def test_no_rate_makes_the_kernel_complain(path: Path) -> None:
    with open_shaper("netem") as shaper:
        before = complaints()
        for rate in RATES:
            shaper.attach({path.there: LinkState(rate, 0.001)})
            assert len(path.answered(3)) == 3
            for other in RATES:
                shaper.apply({path.there.link: LinkState(other, 0.001)})
            shaper.detach(path.there.link)
        assert complaints() == before


def test_a_class_without_a_quantum_would_be_complained_of(path: Path) -> None:
    """As tc makes it, and Mininet: so that the log is known to have what the other test looks for."""
    before = complaints()
    run(*path.command("left", "tc", "qdisc", "add", "dev", "source", "root", "handle", "8:", "htb"))
    run(*path.command("left", "tc", "class", "add", "dev", "source", *PLAIN_CLASS))
    run(*path.command("left", "tc", "qdisc", "delete", "dev", "source", "root"))
    assert len(complaints()) == len(before) + 1


def complaints() -> list[str]:
    """Return the log's lines about traffic control."""
    lines = run("dmesg").splitlines()
    return [line for line in lines if any(word in line.lower() for word in ("htb", "netem", "sch_", "quantum"))]
