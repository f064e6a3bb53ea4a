"""Figures as text."""

from __future__ import annotations

import pytest

from testbed.report import text

pytestmark = pytest.mark.pure


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (text.mbit(28.54e6), "28.5"),
        (text.mbit(1e9), "1000"),
        (text.mbit(2.5e9), "2500"),
        (text.milliseconds(0.0132), "13.2 ms"),
        (text.milliseconds(0.9997), "1000 ms"),
        (text.milliseconds(1.2345), "1234 ms"),
        (text.number(1234.2), "1234"),
        (text.number(12_345.6, 4), "12346"),
        (text.number(0.000123), "0.000123"),
        (text.number(3.2e15), "3.2e+15"),
        (text.times(1500.0), "1500 ×"),
        (text.number(None), text.UNKNOWN),
    ],
)
def test_a_large_figure_has_no_exponent(found: str, said: str) -> None:
    assert found == said
