from __future__ import annotations

import csv
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.spec.errors import SpecError
from testbed.spec.graph.matrix import read_matrix

pytestmark = pytest.mark.pure


def refused(data: bytes, folder: Path) -> str:
    file = folder / "m.csv"
    file.write_bytes(data)
    with pytest.raises(SpecError) as caught:
        read_matrix(file)
    return str(caught.value).removeprefix(f"{file}: ").partition("\n")[0]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "file: is empty"),
        (",a,b\na,,x\nb,,", "line 2, column b: 'x' is no round trip: it is no number with a unit"),
        (",a,b\na,,-1\nb,,", "line 2, column b: '-1' is no round trip"),
        (
            ",a,b\na,,5 furlongs\nb,,",
            "line 2, column b: '5 furlongs' is no round trip: it has the unknown unit 'furlongs'",
        ),
        (
            ",a,b\na,,0.2215\nb,,",
            "line 1: says no unit, and half of the round trips are below 0.2215: in ms that is within a town, in "
            "seconds a WAN",
        ),
        (
            ",a,b\na,,90000\nb,,",
            "line 1: says no unit, and half of the round trips are above 90000: in ms no network has that, in "
            "microseconds a WAN",
        ),
        (",a,b\na,,221\nb,0.22,", "file: a to b is 221 ms, and b to a 0.22 ms: no round trip is both"),
        (",a,b\n\na,,\nb,120001,", "line 4, column a: '120001' is no round trip"),
        (",a,b\na,\nb,,", "line 2: has 2 cells where the first line has 3"),
        (",a,b\na,,\nc,,", "line 3: 'c' is the name of no column"),
        (",a,b\na,,\na,,", "line 3: 'a' is the name of two rows"),
        (",a,a\na,,\nb,,", "line 1: 'a' is the name of two columns"),
        (",a,\na,,\nb,,", "line 1: a column has no name"),
        (",a,b\na,,", "file: has no row for the column 'b'"),
        (',a,b\n"a,,\nb,,', "line 3: is not CSV: unexpected end of data"),
    ],
)
def test_what_breaks_a_matrix_is_said(text: str, said: str, tmp_path: Path) -> None:
    assert refused(text.encode(), tmp_path) == said


def test_a_file_that_is_no_text_is_refused(tmp_path: Path) -> None:
    assert "cannot be read: it begins as UTF-16" in refused(b"\xff\xfe,\x00a", tmp_path)
    with pytest.raises(SpecError, match="cannot be read"):
        read_matrix(tmp_path / "none.csv")


@pytest.mark.parametrize(
    ("corner", "cell"),
    [
        ("", "221.5"),
        ("", "221.5 ms"),
        ("", "0.2215 s"),
        ("s", "0.2215"),
        ("rtt_us", "221500"),
        ("RTT (ms)", "221.5"),
        ("min", "221.5"),
        ("city's", "221.5"),
        ("s", "221.5ms"),
    ],
)
def test_the_unit_is_read_where_it_is_said(corner: str, cell: str, tmp_path: Path) -> None:
    (tmp_path / "m.csv").write_text(f"{corner},a,b\na,-,{cell}\nb,n/a,NaN\n")
    (edge,) = read_matrix(tmp_path / "m.csv").edges
    assert edge.delay_ms == pytest.approx(110.75)


TRIP = st.none() | st.just(0) | st.integers(2_000, 120_000)
NAME = st.text(st.characters(codec="utf-8", categories=["L", "N", "P", "S"]), min_size=1, max_size=8)


@given(st.lists(NAME, min_size=1, max_size=5, unique=True), st.data())
def test_what_was_measured_is_read(names: list[str], data: st.DataObject) -> None:
    trips = {(a, b): data.draw(TRIP) for a in names for b in names}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "m.csv"
        with file.open("w", encoding="utf-8", newline="") as opened:
            writer = csv.writer(opened)
            writer.writerow(["ms", *names])
            writer.writerows([a, *("" if (trip := trips[a, b]) is None else trip for b in names)] for a in names)
        graph = read_matrix(file)
    assert [graph.called(node) for node in graph.nodes] == names
    found = {(edge.source, edge.target): edge.delay_ms for edge in graph.edges}
    for (a, b), there in trips.items():
        ways = [trip for trip in (there, trips[b, a]) if trip is not None]
        if a != b and ways:
            assert found.get((a, b), found.get((b, a))) == pytest.approx(sum(ways) / len(ways) / 2)
    assert len(found) == sum(1 for a, b in trips if a < b and (trips[a, b], trips[b, a]) != (None, None))
