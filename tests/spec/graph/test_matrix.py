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


def refused(data: bytes, folder: Path) -> tuple[str, ...]:
    file = folder / "m.csv"
    file.write_bytes(data)
    with pytest.raises(SpecError) as caught:
        read_matrix(file)
    assert caught.value.file == file
    return caught.value.fields


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("", "file"),
        (",a,b\na,,x\nb,,", "line 2, column b"),
        (",a,b\na,,-1\nb,,", "line 2, column b"),
        (",a,b\na,,5 furlongs\nb,,", "line 2, column b"),
        (",a,b\na,,0.2215\nb,,", "line 1"),
        (",a,b\na,,90000\nb,,", "line 1"),
        (",a,b\na,,221\nb,0.22,", "file"),
        (",a,b\n\na,,\nb,120001,", "line 4, column a"),
        (",a,b\na,\nb,,", "line 2"),
        (",a,b\na,,\nc,,", "line 3"),
        (",a,b\na,,\na,,", "line 3"),
        (",a,a\na,,\nb,,", "line 1"),
        (",a,\na,,\nb,,", "line 1"),
        (",a,b\na,,", "file"),
        (',a,b\n"a,,\nb,,', "line 3"),
    ],
)
def test_what_breaks_a_matrix_is_said(text: str, field: str, tmp_path: Path) -> None:
    assert refused(text.encode(), tmp_path) == (field,)


def test_a_file_that_is_no_text_is_refused(tmp_path: Path) -> None:
    assert refused(b"\xff\xfe,\x00a", tmp_path) == ("file",)
    with pytest.raises(SpecError) as caught:
        read_matrix(tmp_path / "none.csv")
    assert caught.value.fields == ("file",)


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


@pytest.mark.parametrize("begin", ["\n", " \n\n", "# from there\n\n", "\nsep=;\n"])
def test_empty_lines_before_the_names_do_not_count(begin: str, tmp_path: Path) -> None:
    (tmp_path / "m.csv").write_text(f"{begin};a;b\na;;221,5\nb;;\n")
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
