from __future__ import annotations

from datetime import datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.trace.forms.cellular import parse_cellular
from testbed.trace.trace import TraceError

pytestmark = pytest.mark.pure

#: As the dataset has them: two lines of a second, a gap, and what was not measured.
DRIVE = """\
Timestamp,Longitude,Latitude,Speed,Operatorname,NetworkMode,RSRP,SNR,DL_bitrate,UL_bitrate,State,PINGAVG,PINGLOSS
2019.12.14_10.16.30,-8.4,51.9,0,A,LTE,-93,12.0,-,312,I,-,-
2019.12.14_10.16.31,-8.4,51.9,3,A,LTE,-93,12.0,27431,312,D,42.5,0
2019.12.14_10.16.31,-8.4,51.9,3,A,5G,-91,13.0,30431,-,D,44.5,0
2019.12.14_10.16.32,-8.4,51.9,5,A,5G,-,-,0,280,D,-,-
2019.12.14_10.16.35,-8.4,51.9,9,A,5G,-88,15.0,40000,298,D,60,0
"""


def test_each_direction_has_its_trace() -> None:
    log = parse_cellular(DRIVE.splitlines())
    assert not log.left_out
    down, up = log.traces["down"], log.traces["up"]
    assert [(row.time_s, row.delay_s) for row in down.rows] == [(0, 0.02175), (1, 0.02175), (4, 0.03)] + (
        [(5.5, 0.03)] if len(down.rows) == 4 else []
    )
    assert down.rows[0].rate_bps == pytest.approx((27431 + 30431) / 2 * 1e3), "the mean of a second's lines"
    assert down.rows[1].rate_bps == pytest.approx(64e3), "a link carries no less"
    assert [row.time_s for row in up.rows] == [0, 1, 2, 5]
    assert up.rows[0].delay_s is None, "nothing was measured yet, so it is the link's own"
    assert [row.rate_bps for row in up.rows] == pytest.approx([312e3, 312e3, 280e3, 298e3])


def log(*rows: str, header: str = "Timestamp,DL_bitrate,UL_bitrate,PINGAVG") -> list[str]:
    return [header, *(f"2020-01-01T00:00:0{i},{row}" for i, row in enumerate(rows))]


def test_a_direction_without_rates_is_left_out() -> None:
    assert list(parse_cellular(log("900,-,5", "800,-,-")).traces) == ["down"]
    assert parse_cellular(log("900,-,5", "800,-,-")).left_out["up"].startswith("UL_bitrate: ")
    assert "1 kbit/s" in parse_cellular(log("900,1,5", "800,1,-")).left_out["up"]
    alone = parse_cellular(log("900", "800", header="Timestamp,DL_bitrate"))
    assert [row.delay_s for row in alone.traces["down"].rows] == [None, None]
    assert alone.left_out["up"].startswith("UL_bitrate: ")


@pytest.mark.parametrize(
    ("lines", "broken"),
    [
        ([], ("empty", None, None)),
        (["a,b"], ("missing-column", 1, "Timestamp")),
        (["Timestamp,DL_bitrate"], ("too-few", None, None)),
        (log("900,800,5"), ("too-few", None, None)),
        (log("-,-,5", "-,-,5"), ("no-rate", None, "DL_bitrate, UL_bitrate")),
        (log("x,-,5", "1,-,5"), ("number", 2, "DL_bitrate")),
        (log("-5,-,5", "1,-,5"), ("number", 2, "DL_bitrate")),
        (log("900,-,5", "800,-,nan"), ("number", 3, "PINGAVG")),
        (log("900,-,0.05", "800,-,0.06"), ("unit", None, "PINGAVG")),
        (log("27431000,-,5", "27431000,-,5"), ("number", 2, "DL_bitrate")),
        (log("27.4,-,5", "312,-,5"), ("unit", None, "DL_bitrate")),
        (log("900,-,5,7"), ("cells", 2, None)),
        (log("900,-"), ("cells", 2, None)),
        (["Timestamp,DL_bitrate", "10:30,5", "10:31,5"], ("number", 2, "Timestamp")),
        ([*log("900,-,5", "800,-,5"), "2019.12.14_10.16.30,1,1,1"], ("order", 4, "Timestamp")),
        ([*log("900,-,5", "800,-,5"), *log("300,-,5")[1:]], ("order", 4, "Timestamp")),
        (["Timestamp,DL_bitrate", '"a'], ("csv", 2, None)),
    ],
)
def test_what_breaks_the_form_is_named(lines: list[str], broken: tuple[object, ...]) -> None:
    with pytest.raises(TraceError) as caught:
        parse_cellular(lines)
    assert (caught.value.rule, caught.value.line, caught.value.field) == broken


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(64, 10**6), st.none() | st.integers(0, 900)), min_size=2))
def test_what_was_measured_is_kept(rows: list[tuple[int, int, int | None]]) -> None:
    now, lines, delay, delays = datetime(2020, 1, 1), ["Timestamp,PINGAVG,DL_bitrate"], None, []
    for gap, kbits, ping in rows:
        now += timedelta(seconds=gap)
        lines.append(f"{now:%Y.%m.%d_%H.%M.%S},{'-' if ping is None else ping},{kbits}")
        delay = delay if ping is None else ping / 2e3
        delays.append(delay)
    found = parse_cellular(lines).traces["down"].rows[: len(rows)]
    assert [row.delay_s for row in found] == delays
    assert [row.rate_bps for row in found] == pytest.approx([kbits * 1e3 for _, kbits, _ in rows])
