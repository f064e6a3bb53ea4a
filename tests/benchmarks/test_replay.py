"""The schedule with which the replay's benchmark compares arrivals."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from benchmarks.replay import Delivered, delivery_trace, fastest, generated, windows
from testbed.link import Opportunities
from testbed.trace.trace import TraceError

pytestmark = pytest.mark.pure


def test_opportunities_are_counted_by_second_lap_after_lap() -> None:
    # At 0 and 0.4 s, and at 1.5 s, which is also 0 of the next lap: 0, 0.4 | 1.5, 1.5, 1.9 | … 3.0, 3.0, 3.4
    assert windows(Opportunities((0, 400, 1500)), 4) == [2, 3, 0, 3]


def test_the_fastest_stretch_is_of_a_tenth_of_a_second() -> None:
    assert fastest(Opportunities((0, 500, 501, 550, 599, 601, 1500), 1000.0)) == 4 * 1000 * 8 / 0.1


def test_what_is_generated_lasts_and_breaks_off() -> None:
    schedule = generated(30)
    assert 29 <= schedule.duration_s <= 30
    moments = schedule.milliseconds
    assert max(after - before for before, after in pairwise(moments)) > 200


def test_errors_are_relative_to_what_was_asked() -> None:
    found = Delivered("x", "userspace", asked_mbps=[10.0, 2.0, 0.0], arrived_mbps=[9.0, 2.0, 0.2])
    assert found.mean_error == pytest.approx(1.2 / 12)
    assert found.mean_window_error == pytest.approx(0.05)


def test_deliveries_are_held_to_their_claims() -> None:
    found = Delivered("x", "userspace", asked_mbps=[10.0, 2.0, 4.0], arrived_mbps=[10.0, 2.0, 4.0])
    assert found.held and not replace(found, arrived_mbps=[9.0, 2.0, 4.0]).held


def test_a_file_without_deliveries_is_refused(tmp_path: Path) -> None:
    (file := tmp_path / "rates.csv").write_text("time_s,rate_mbps\n0,10\n1,20\n")
    with pytest.raises(TraceError) as refused:
        delivery_trace(file, 15)
    assert (refused.value.rule, refused.value.file) == ("no-deliveries", file)
