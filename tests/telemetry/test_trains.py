"""Rates of links while trains pass them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.link import MTU_FRAME_BYTES, TCP_PAYLOAD_BYTES
from testbed.protocol import Train
from testbed.telemetry.trains import FRAME_BITS, Carried, passed_bps

pytestmark = pytest.mark.pure

WIRE = 8 * MTU_FRAME_BYTES / TCP_PAYLOAD_BYTES

trains = st.builds(Train, st.floats(1, 100), st.floats(0.001, 2), st.integers(1, 10**6))


@given(st.lists(trains, max_size=20))
def test_what_was_carried_grows_from_nothing_to_all_of_it(its: list[Train]) -> None:
    carried = Carried(its).by(np.linspace(0, 200, 500))
    assert carried[0] == 0 and carried[-1] == sum(train.bytes for train in its)
    assert np.all(np.diff(carried) >= 0)


def test_bytes_come_evenly_within_a_train_and_not_between_two() -> None:
    carried = Carried([Train(4.0, 1.0, 500), Train(1.0, 2.0, 1000)])
    assert carried.by(np.array([1.0, 2.0, 3.0, 3.9, 4.5, 6.0])) == pytest.approx([0, 500, 1000, 1000, 1250, 1500])


@given(st.floats(1, 100), st.floats(0.001, 2), st.integers(1, 10**6))
def test_a_link_that_one_train_passes_carries_that_train_in_frames(began_s: float, seconds: float, count: int) -> None:
    its = {("a", "b"): [Train(began_s, seconds, count)]}
    found = passed_bps(its, {("a", "b"): ("a->b",)}, {})
    assert found[("a", "b"), "a->b"] == pytest.approx([count / seconds * WIRE])
    assert FRAME_BITS == WIRE


def test_what_passed_a_shared_link_at_the_same_time_counts_for_both_by_when_it_passed_there() -> None:
    """Both trains pass a->x from 10 to 11 s; one arrives at b 20 ms later, the other at c 120 ms later."""
    its = {("a", "b"): [Train(10.02, 1.0, 1000)], ("a", "c"): [Train(10.12, 1.0, 500)]}
    routes = {("a", "b"): ("a->x", "x->b"), ("a", "c"): ("a->x", "x->c")}
    found = passed_bps(its, routes, {"a->x": 0.3, "x->b": 0.02, "x->c": 0.12})
    assert found[("a", "b"), "a->x"] == found[("a", "c"), "a->x"] == pytest.approx([1500 * WIRE])
    assert found[("a", "b"), "x->b"] == pytest.approx([1000 * WIRE])
    assert found[("a", "c"), "x->c"] == pytest.approx([500 * WIRE])


def test_of_a_train_that_another_one_meets_half_way_half_counts() -> None:
    its = {("a", "b"): [Train(10.0, 1.0, 1000)], ("a", "c"): [Train(10.5, 1.0, 1000)]}
    found = passed_bps(its, {("a", "b"): ("up",), ("a", "c"): ("up",)}, {})
    assert found[("a", "b"), "up"] == pytest.approx([1500 * WIRE])


def test_edges_without_trains_have_no_rates() -> None:
    assert passed_bps({("a", "b"): []}, {}, {}) == {}
