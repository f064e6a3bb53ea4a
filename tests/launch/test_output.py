"""Output in lines."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.launch.output import LONGEST_LINE, Lines

pytestmark = pytest.mark.pure


def lines_of(pieces: list[bytes]) -> list[bytes]:
    lines = Lines()
    return [line for piece in pieces for line in lines.take(piece)] + list(lines.end())


@given(pieces=st.lists(st.binary(max_size=40)))
def test_lines_do_not_depend_on_the_pieces_they_come_in(pieces: list[bytes]) -> None:
    whole = b"".join(pieces)
    assert lines_of(pieces) == lines_of([whole])
    if b"\r" not in whole:
        assert b"\n".join(lines_of(pieces)) == whole.removesuffix(b"\n")


def test_what_a_carriage_return_writes_over_is_left_out() -> None:
    assert lines_of([b"step 1\rstep 2\rst", b"ep 3\r\nover\r\n"]) == [b"step 3", b"over"]


def test_a_line_without_end_is_passed_on_in_pieces() -> None:
    lines = Lines()
    passed = [line for _ in range(100) for line in lines.take(b"x" * 4096)]
    assert passed
    assert max(map(len, passed)) <= LONGEST_LINE + 4096
    assert sum(map(len, passed)) + sum(map(len, lines.end())) == 100 * 4096
