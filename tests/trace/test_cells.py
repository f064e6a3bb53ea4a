from __future__ import annotations

import pytest

from testbed.trace.cells import read_cells, with_points
from testbed.trace.trace import TraceError

pytestmark = pytest.mark.pure


def cells(*lines: str) -> list[list[str]]:
    return [row for _, row in read_cells(list(enumerate(lines, 1)))]


@pytest.mark.parametrize(
    ("lines", "rows"),
    [
        (("a,b", "1.5, 2"), [["a", "b"], ["1.5", "2"]]),
        (("a;b", "1,5;2"), [["a", "b"], ["1.5", "2"]]),
        (("a;b", "1.5;2"), [["a", "b"], ["1.5", "2"]]),
        (("a\tb", "1,5\t,25"), [["a", "b"], ["1.5", ".25"]]),
        (("a\tb", "-1,5e3\tx,y"), [["a", "b"], ["-1.5e3", "x,y"]]),
        (("sep=;", "a,b;c", "1,5;2"), [["a,b", "c"], ["1.5", "2"]]),
        (("SEP=,", "a,b"), [["a", "b"]]),
        (('"a;b",c', '"1,5",2'), [["a;b", "c"], ["1.5", "2"]]),
        (("a,b", '"1,5",2.5'), [["a", "b"], ["1,5", "2.5"]]),
        (("a,b", '"1,500",2'), [["a", "b"], ["1,500", "2"]]),
        (("a;b", "0,125;1"), [["a", "b"], ["0.125", "1"]]),
        (("a;b", "1,500;2,5"), [["a", "b"], ["1.500", "2.5"]]),
        ((), []),
    ],
)
def test_the_first_line_tells_the_separator(lines: tuple[str, ...], rows: list[list[str]]) -> None:
    assert cells(*lines) == rows


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (("a;b", "1,500;2"), "line 2: '1,500' may be 1.500 or 1500; write it with a decimal point"),
        (("a;b", "1;2", "1.234,5;2"), "line 3: '1.234,5' has a point and a comma"),
        (("a;b", "1,5;2.5"), "line 2: '2.5' has a point where '1,5' has a comma; write points alone"),
        (("a,b", '"1'), "line 2: is not CSV: unexpected end of data"),
    ],
)
def test_what_may_be_read_in_two_ways_is_refused(lines: tuple[str, ...], said: str) -> None:
    with pytest.raises(TraceError) as caught:
        cells(*lines)
    assert said in str(caught.value)


def test_lines_keep_their_numbers() -> None:
    assert read_cells([(3, "a"), (7, "b")]) == [(3, ["a"]), (7, ["b"])]
    assert with_points([(4, ["0,5"])]) == [(4, ["0.5"])]
