from __future__ import annotations

import filecmp
import runpy
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from testbed.trace.csv import COLUMNS, columns_of, parse_csv, read_speeds, write_csv
from testbed.trace.read import read_trace
from testbed.trace.trace import Row, Trace, TraceError

pytestmark = pytest.mark.pure

TRACES = Path(__file__).parents[2] / "traces"


def test_columns_come_in_the_link_s_units() -> None:
    lines = "# from somewhere\n\ntime_s,rate_mbps,delay_ms,jitter_ms,loss_pct\n0,40,55,2,1\n 1.5 ,, 60,,\n".splitlines()
    assert parse_csv(lines).rows == (Row(0, 40e6, 0.055, 0.002, 0.01), Row(1.5, None, 0.06))


def test_columns_may_stand_in_any_order() -> None:
    assert parse_csv(["time_s, loss_pct, rate_mbps", "0, 0, 1"]).rows == (Row(0, 1e6, loss=0.0),)


@pytest.mark.parametrize(
    ("text", "broken"),
    [
        ("", ("header", None)),
        ("# only words\n", ("header", None)),
        ("0,40\n1,50\n", ("header", 1)),
        ("time_s\n0\n", ("header", 1)),
        ("time_s,rate_mbps,rate_mbps\n", ("header", 1)),
        ("time_s,rate\n0,1\n", ("unknown-column", 1)),
        ("time_s,rate_mbps\n", ("empty", None)),
        ("time_s,rate_mbps\n1,40\n", ("begin", None)),
        ("time_s,rate_mbps\n0,40\n0,41\n", ("order", 3)),
        ("# x\ntime_s,rate_mbps\n0,40\n2,41\n1,42\n", ("order", 5)),
        ("time_s,rate_mbps\n0,40,1\n", ("cells", 2)),
        ("time_s,rate_mbps\n0,fast\n", ("number", 2)),
        ("time_s,rate_mbps\n0,nan\n", ("range", 2)),
        ("time_s,rate_mbps\n0,inf\n", ("range", 2)),
        ("time_s,rate_mbps\n0,-1\n", ("range", 2)),
        ("time_s,rate_mbps\n0,0\n", ("range", 2)),
        ("time_s,loss_pct\n0,101\n", ("range", 2)),
        ('time_s,rate_mbps\n0,"4\n0"\n', ("csv", 3)),
        ('time_s,rate_mbps\n0,"40\n', ("csv", 2)),
        ("time_s,rate_mbps\n" + "0," + "4" * 5000 + "\n", ("range", 2)),
    ],
)
def test_a_broken_rule_is_named_with_its_line(text: str, broken: tuple[str | None, int | None]) -> None:
    with pytest.raises(TraceError) as caught:
        parse_csv(text.splitlines())
    assert (caught.value.rule, caught.value.line) == broken


@given(st.text(st.characters() | st.sampled_from('0123456789.,-"#\n'), max_size=80))
@settings(max_examples=150)
def test_any_text_is_a_trace_or_refused(text: str) -> None:
    for lines in (text.splitlines(), ["time_s,rate_mbps", *text.splitlines()]):
        try:
            assert parse_csv(lines).rows
        except TraceError as error:
            assert str(error)


@pytest.mark.parametrize(
    ("text", "rule"), [("time_s,rate_mbps\n0,\n1,\n", "no-values"), ("time_s,speed\n0,1\n1,1\n", "speeds")]
)
def test_a_file_without_values_or_of_another_kind_is_refused(text: str, rule: str) -> None:
    with pytest.raises(TraceError) as caught:
        parse_csv(text.splitlines())
    assert caught.value.rule == rule


@pytest.mark.parametrize("content", [b"\xff\xfe\x00", b"time_s,rate_mbps\n0,\xff\n", b"\0"])
def test_a_file_that_is_no_text_is_named(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "trace.csv").write_bytes(content)
    with pytest.raises(TraceError) as caught:
        read_trace(tmp_path / "trace.csv")
    assert caught.value.file == tmp_path / "trace.csv"


def six_digits(least: float, most: float) -> st.SearchStrategy[float | None]:
    """Values that a file holds exactly, and none."""
    return st.none() | st.floats(least, most).map(lambda value: float(f"{value:.6g}"))


@st.composite
def traces(draw: st.DrawFn) -> Trace:
    moments = sorted(draw(st.sets(st.integers(1, 10**8), max_size=5)))
    columns = {field: draw(st.booleans()) for field, _, _ in COLUMNS.values()}
    if not any(columns.values()):
        columns["rate_bps"] = True
    rows = []
    for moment in (0, *moments):
        cells = {}
        for field, unit, most in COLUMNS.values():
            value = draw(six_digits(1e-3, most)) if columns[field] else None
            cells[field] = None if value is None else value * unit
        rows.append(Row(moment / 100, **cells))
    return Trace(tuple(rows))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(trace=traces())
def test_what_is_written_is_read_back(trace: Trace, tmp_path: Path) -> None:
    if all(getattr(row, field) is None for row in trace.rows for field, _, _ in COLUMNS.values()):
        return  # a trace that says nothing has no column to be written
    write_csv(tmp_path / "trace.csv", trace, ["made", "here"])
    found = read_trace(tmp_path / "trace.csv").trace
    assert [row.time_s for row in found.rows] == [row.time_s for row in trace.rows]
    for column, (field, _, _) in COLUMNS.items():
        for mine, theirs in zip(trace.rows, found.rows, strict=True):
            before, after = getattr(mine, field), getattr(theirs, field)
            assert after is before is None or after == pytest.approx(before, rel=1e-12), column


def test_times_are_written_whole(tmp_path: Path) -> None:
    trace = Trace((Row(0, 1e6), Row(100_000.1, 2e6), Row(100_000.2, 1e6)))
    write_csv(tmp_path / "trace.csv", trace)
    assert read_trace(tmp_path / "trace.csv").trace == trace


def test_the_quickstart_s_traces_are_what_their_maker_makes(tmp_path: Path) -> None:
    make = runpy.run_path(str(TRACES / "make_quickstart.py"))["make"]
    make(tmp_path)
    names = sorted(file.name for file in (TRACES / "quickstart").iterdir())
    assert sorted(file.name for file in tmp_path.iterdir()) == names
    assert filecmp.cmpfiles(tmp_path, TRACES / "quickstart", names, shallow=False)[0] == names
    assert all(file.read_text().startswith("# OrnsteinUhlenbeck(") for file in tmp_path.iterdir())


def test_a_column_is_in_its_own_unit_and_its_mean_over_time() -> None:
    trace = Trace((Row(0, 10e6, delay_s=0.05), Row(3, None, delay_s=0.01), Row(4, 2e6, delay_s=0.03)))
    rate, delay = columns_of(trace)
    assert (rate.name, rate.least, rate.most) == ("rate_mbps", 2, 10)
    assert rate.values == (10, None, 2)
    assert rate.mean == pytest.approx((3 * 10 + 1 * 2) / 4)
    assert delay.name == "delay_ms"
    assert delay.mean == pytest.approx((3 * 50 + 10 + 30) / 5)
    assert delay.edges_s == (0, 3, 4, 5)


def test_a_trace_of_speed(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("# from somewhere\n\ntime_s, speed\n0,1\n 20 , 0.25\n30,1\n")
    assert read_speeds(tmp_path / "a.csv") == ((0.0, 1.0), (20.0, 0.25), (30.0, 1.0))


@pytest.mark.parametrize(
    ("text", "broken"),
    [
        ("time_s,rate_mbps\n0,1\n", ("header", 1)),
        ("time_s,speed\n0,1\n", ("rows", None)),
        ("time_s,speed\n1,1\n2,1\n", ("begin", 2)),
        ("time_s,speed\n0,1\n0,2\n", ("order", 3)),
        ("time_s,speed\n0,0\n1,1\n", ("range", 2)),
        ("time_s,speed\n0,fast\n1,1\n", ("number", 2)),
        ("time_s,speed\n0,1,2\n1,1\n", ("number", 2)),
        ("time_s,speed\n0,1\nnan,1\n", ("range", 3)),
    ],
)
def test_an_invalid_file_of_speeds_is_refused(text: str, broken: tuple[str | None, int | None], tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(text)
    with pytest.raises(TraceError) as caught:
        read_speeds(tmp_path / "a.csv")
    assert caught.value.file == tmp_path / "a.csv"
    assert (caught.value.rule, caught.value.line) == broken
