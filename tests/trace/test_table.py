from __future__ import annotations

import pytest

from testbed.trace.table import read_cells, with_points
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
    ("lines", "broken"),
    [
        (("a;b", "1,500;2"), ("decimal-sign", 2, "1,500")),
        (("a;b", "1;2", "1.234,5;2"), ("decimal-sign", 3, "1.234,5")),
        (("a;b", "1,5;2.5"), ("decimal-sign", 2, "2.5")),
        (("a,b", '"1'), ("csv", 2, None)),
    ],
)
def test_what_may_be_read_in_two_ways_is_refused(lines: tuple[str, ...], broken: tuple[object, ...]) -> None:
    with pytest.raises(TraceError) as caught:
        cells(*lines)
    assert (caught.value.rule, caught.value.line, caught.value.given) == broken
    assert f"line {caught.value.line}: " in str(caught.value)


def test_lines_keep_their_numbers() -> None:
    assert read_cells([(3, "a"), (7, "b")]) == [(3, ["a"]), (7, ["b"])]
    assert with_points([(4, ["0,5"])]) == [(4, ["0.5"])]
