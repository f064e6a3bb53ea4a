"""The copy of a hosts file that `cluster down` reads, and what the doctor reads from `ping` and from other clocks."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from testbed.scaleout.cluster import READINGS, clock_offset, portable_text, round_trip
from testbed.spec.hosts import Hosts

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

ONE_WAY_S = st.floats(1e-4, 0.2)
WAYS = st.lists(st.tuples(ONE_WAY_S, ONE_WAY_S), min_size=READINGS, max_size=READINGS)


def test_what_is_kept_of_a_hosts_file_names_the_same_from_another_folder(tmp_path: Path) -> None:
    file = tmp_path / "hosts.yaml"
    hosts = {"a": {"address": "10.0.0.1", "key": "keys/id"}, "b": {"address": "10.0.0.2", "port": 2222}}
    file.write_text(yaml.safe_dump({"known_hosts": "known", "hosts": hosts}))
    loaded = Hosts.load(file)
    (tmp_path / "elsewhere").mkdir()
    again = tmp_path / "elsewhere" / "hosts.yaml"
    again.write_text(portable_text(loaded))
    other = Hosts.load(again)
    assert other.path(other.spec.known_hosts or "") == (tmp_path / "known").resolve()
    assert other.path(other.by_name["a"].key or "") == (tmp_path / "keys" / "id").resolve()
    assert other.by_name["b"] == loaded.by_name["b"]


def test_the_least_round_trip_and_the_jitter_are_in_seconds() -> None:
    assert round_trip(ANSWERED) == (pytest.approx(4.031e-3), pytest.approx(0.056e-3))


def test_where_nothing_came_back_nothing_is_known() -> None:
    assert round_trip(SILENT) == (None, None)


@given(st.floats(-10, 10), WAYS)
def test_the_offset_is_within_its_bound_whatever_the_ways_take(ahead_s: float, ways: list[tuple[float, float]]) -> None:
    now_s = 1000.0
    left = iter(ways)

    def own_s() -> float:
        return now_s

    def read_s() -> float:
        nonlocal now_s
        there_s, back_s = next(left)
        now_s += there_s
        read = now_s + ahead_s
        now_s += back_s
        return read

    offset_s, bound_s = clock_offset(read_s, own_s)
    assert abs(offset_s - ahead_s) <= bound_s + 1e-9
    assert bound_s == pytest.approx(min(there + back for there, back in ways) / 2)
