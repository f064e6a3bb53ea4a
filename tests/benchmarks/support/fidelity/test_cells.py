"""The state that a cell asks for, and the causes that account for a rate's error."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.support.fidelity.cells import Cell, Figure, Result, all_within, why
from benchmarks.support.fidelity.flows import Rate
from testbed.link import LinkState

pytestmark = pytest.mark.pure


def rate(error: float, **measured: float) -> Rate:
    return Rate(
        error,
        resolution=0.0,
        offered=measured.get("offered", 1.25),
        cpu=measured.get("cpu", 0.3),
        waiting=measured.get("waiting", 1.0),
        waiting_error=measured.get("waiting_error", 0.0),
    )


def test_a_slow_link_has_the_queue_it_has_by_default_and_a_fast_one_room_for_bursts() -> None:
    assert Cell(0.5, 20, 0).state.queue_bytes == LinkState(0.5e6, 0.010).queue_bytes
    assert Cell(500, 300, 0).state.queue_bytes == LinkState(500e6, 0.150).queue_bytes
    assert Cell(500, 0, 0).state.queue_bytes == 500e6 / 8 * 0.020


def test_an_empty_queue_explains_what_it_cost_and_no_more() -> None:
    assert "10.0% of the time nothing waited" in (why(rate(-0.10, waiting=0.9), 0.02) or "")
    assert why(rate(-0.20, waiting=0.9), 0.02) is None
    assert why(rate(-0.10, waiting=0.9, waiting_error=-0.1), 0.02) is None
    assert why(rate(+0.10, waiting=0.9), 0.02) is None


def test_a_busy_machine_and_a_slow_sender_are_named() -> None:
    assert why(rate(-0.1), 0.02) is None
    assert "processors" in (why(rate(-0.1, cpu=0.99), 0.02) or "")
    assert "offered 70%" in (why(rate(-0.3, offered=0.7), 0.02) or "")


def test_a_figure_outside_its_tolerance_counts_unless_the_host_cannot_carry_the_rate() -> None:
    fine = Figure(0.0, True, "+0.0 %")
    result = Result("testbed", Cell(5, 20, 0), fine, fine, None, ())
    assert all_within([result, replace(result, rate=Figure(-0.5, False, "-50.0 %", carried=False))])
    assert not all_within([result, replace(result, rtt=Figure(0.01, False, "+10.00 ms"))])
