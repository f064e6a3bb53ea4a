"""What `ping` says of a path."""

from __future__ import annotations

import pytest

from testbed.scaleout.agent import round_trip

pytestmark = pytest.mark.pure

ANSWERED = """PING 10.99.0.2 (10.99.0.2) 56(84) bytes of data.

--- 10.99.0.2 ping statistics ---
21 packets transmitted, 21 received, 0% packet loss, time 1012ms
rtt min/avg/max/mdev = 4.031/4.082/4.175/0.056 ms
"""
SILENT = """PING 10.99.0.9 (10.99.0.9) 56(84) bytes of data.

--- 10.99.0.9 ping statistics ---
21 packets transmitted, 0 received, 100% packet loss, time 1024ms
"""


def test_the_least_round_trip_and_the_jitter_are_in_seconds() -> None:
    assert round_trip(ANSWERED) == (pytest.approx(4.031e-3), pytest.approx(0.056e-3))


def test_where_nothing_came_back_nothing_is_known() -> None:
    assert round_trip(SILENT) == (None, None)
