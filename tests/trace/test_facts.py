from __future__ import annotations

import pytest

from testbed.trace.facts import columns_of
from testbed.trace.trace import Row, Trace

pytestmark = pytest.mark.pure


def test_a_column_is_in_its_own_unit_and_its_mean_over_time() -> None:
    trace = Trace((Row(0, 10e6, delay_s=0.05), Row(3, None, delay_s=0.01), Row(4, 2e6, delay_s=0.03)))
    rate, delay = columns_of(trace)
    assert (rate.name, rate.least, rate.most) == ("rate_mbps", 2, 10)
    assert rate.values == (10, None, 2)
    assert rate.mean == pytest.approx((3 * 10 + 1 * 2) / 4)
    assert delay.name == "delay_ms"
    assert delay.mean == pytest.approx((3 * 50 + 10 + 30) / 5)
    assert delay.edges_s == (0, 3, 4, 5)
