"""The numbers of the tree: bucket and delay line, over the whole range of rates."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.emulation.shaping import tc
from testbed.emulation.shaping.netem import _Tree, burst_bytes, delay_line_packets
from testbed.link import MTU_FRAME_BYTES, LinkState

pytestmark = pytest.mark.pure

rates = st.floats(64e3, 10e9)


@given(rates)
def test_a_bucket_lends_little_in_a_window_of_100_ms(rate: float) -> None:
    """At most 1 % of what the window may carry, or two frames."""
    assert 2 * MTU_FRAME_BYTES <= burst_bytes(rate) <= max(0.01 * rate / 8 * 0.1 + 1, 2 * MTU_FRAME_BYTES)


@given(rates, st.floats(0, 1))
def test_the_delay_line_holds_small_frames_at_full_rate(rate: float, delay: float) -> None:
    assert delay_line_packets(LinkState(rate, delay)) * 64 >= rate / 8 * delay


@given(rates)
def test_a_class_is_valid_at_any_rate(rate: float) -> None:
    assert tc.htb_class(1, 2, 3, rate, burst_bytes(rate)).body


def test_a_link_that_goes_down_keeps_its_rate_so_that_its_queue_drains() -> None:
    up = LinkState(10e6, 0.01)
    down = replace(up, rate_bps=0.0)
    tree = _Tree(cast("tc.TrafficControl", None), Path("/nowhere"), 1, tc.handle(7), up, since=0.0, seen_at=0.0)
    assert tree.rate(down) not in tree.change(down)
    assert tree.delay(down) in tree.change(down), "the delay line drops every packet of a link that is down"
    assert tree.rate(replace(up, rate_bps=5e6)) in tree.change(replace(up, rate_bps=5e6))
    assert tree.change(up) == []
