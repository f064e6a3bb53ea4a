"""Output in lines, and the newest state of a line that is not ended yet."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.launch.output import LONGEST_LINE, STATE_S, Lines

pytestmark = pytest.mark.pure

#: Characters that act on a terminal; a line end and a tab are not among them.
CONTROL = re.compile(rb"[\x00-\x08\x0b-\x1f\x7f]|\xc2[\x80-\x9f]")

#: How often somebody looks, and how often a bar is redrawn by default.
LOOK_S = 0.2
REDRAWN_S = 0.1


def versions_of(pieces: list[bytes]) -> list[tuple[bytes, bool]]:
    lines = Lines()
    found = [version for piece in pieces for version in lines.take(piece)] + list(lines.end())
    return [(version.text, version.finished) for version in found]


def lines_of(pieces: list[bytes]) -> list[bytes]:
    return [text for text, finished in versions_of(pieces) if finished]


@given(pieces=st.lists(st.binary(max_size=40) | st.text("ab\r\n\x1b[2KGA", max_size=9).map(str.encode)))
def test_versions_do_not_depend_on_the_pieces_they_come_in(pieces: list[bytes]) -> None:
    whole = b"".join(pieces)
    assert versions_of(pieces) == versions_of([whole])
    if not CONTROL.search(whole):
        assert b"\n".join(lines_of(pieces)) == whole.removesuffix(b"\n")


def test_what_a_carriage_return_writes_over_is_no_line_but_a_version() -> None:
    pieces = [b"step 1\rstep 2\rst", b"ep 3\r\nover\r\n"]
    assert lines_of(pieces) == [b"step 3", b"over"]
    assert [text for text, _ in versions_of(pieces)] == [b"step 1", b"step 2", b"step 3", b"over"]


def test_a_line_without_end_is_passed_on_in_pieces() -> None:
    lines = Lines()
    passed = [version.text for _ in range(100) for version in lines.take(b"x" * 4096)]
    assert passed
    assert max(map(len, passed)) <= LONGEST_LINE + 4096
    assert sum(map(len, passed)) + sum(len(version.text) for version in lines.end()) == 100 * 4096


def test_a_cursor_that_moves_stays_in_its_line_and_colours_are_kept() -> None:
    assert lines_of([b"\x1b[32minner 5%\x1b[0m\x1b[A\x1b[2K\n"]) == [b"\x1b[32minner 5%\x1b[0m"]


#: Output, and what is shown of it.
SHOWN = {
    "clipboard and reset": (b"\x1b]52;c;eA==\x07a\x1bc\x1b[31mb", b"a\x1b[31mb"),
    "title that a string terminator ends": (b"\x1b]0;title\x1b\\a", b"a"),
    "device control string": (b"\x1bP1;2|17/ab\x1b\\a", b"a"),
    "string without an end": (b"\x1b]0;a", b"0;a"),
    "private mode and cursor shape": (b"\x1b[?1049ha\x1b[2 qb", b"ab"),
    "character set": (b"\x1b(0a", b"a"),
    "control characters but tabs": (b"a\x00\x07\x08\tb\x7f", b"a\tb"),
    "colours": (b"\x1b[ma\x1b[1;32mb", b"\x1b[ma\x1b[1;32mb"),
    "colour in pieces": (b"\x1b[3\x071mA\x1b\x1b[31A", b"[31mA"),
    "control characters of two bytes": (b"\xc2\x9b31mA\xc2\x1bc\x9b", b"\xef\xbf\xbd31mA\xef\xbf\xbd"),
    "letters of two bytes": ("café".encode(), "café".encode()),
}


@pytest.mark.parametrize("kind", list(SHOWN))
def test_what_acts_on_a_terminal_is_not_shown_except_colours(kind: str) -> None:
    output, shown = SHOWN[kind]
    assert lines_of([output + b"\n"]) == [shown]


@pytest.mark.parametrize("again", ["\x1b[1G", "\x1b[G", "\x1b[2K\x1b[1G", "\x1b[1A\x1b[2K", "\x1b[F", "\r\x1b[2K"])
def test_a_sequence_that_begins_the_line_again_overwrites_as_a_carriage_return_does(again: str) -> None:
    pieces = [f"{again}{step}% loss: {step / 10}".encode() for step in range(1, 4)]
    found = [(b"1% loss: 0.1", False), (b"2% loss: 0.2", False), (b"3% loss: 0.3", True)]
    assert versions_of([*pieces, b"\n"]) == found
    assert versions_of([b"".join(pieces)]) == found


#: How programs redraw a line: tqdm returns first, others last; `wget` and `apt` end with one of spaces.
BARS = {
    "return first": lambda step: f"\r{step:3d}%|{'#' * (step // 10):10}| [loss={1 / step:.3f}]".encode(),
    "return last": lambda step: f"Epoch 1 {step}/100\r".encode(),
    "cleared between": lambda step: f"\r{' ' * 40}\rfile {step}%".encode(),
    "no return": lambda step: b".",
}


@pytest.mark.parametrize("bar", list(BARS))
def test_the_newest_state_of_an_unfinished_line_comes_about_once_a_second(bar: str) -> None:
    """Over 30 s of a bar, with no line end before its own."""
    lines, seen = Lines(), list[tuple[float, bytes]]()
    for tick in range(300):
        now_s = tick * REDRAWN_S
        assert [version for version in lines.take(BARS[bar](tick + 1)) if version.finished] == []
        if tick % 2 == 0 and (state := lines.state(now_s)) is not None:
            seen.append((now_s, state))
            assert state == b"." * (tick + 1) or str(tick + 1).encode() in state, "it is the newest"
    assert seen[0][0] <= STATE_S + LOOK_S
    gaps = [later - earlier for (earlier, _), (later, _) in pairwise(seen)]
    assert min(gaps) >= STATE_S - 1e-9
    assert max(gaps) <= STATE_S + LOOK_S + 1e-9


def test_a_state_that_stays_is_said_once_and_comes_without_another_piece() -> None:
    lines = Lines()
    list(lines.take(b"\r 10%\r 20%"))
    assert [lines.state(at_s) for at_s in (0.0, 0.5, 1.0, 2.0, 9.0)] == [None, None, b" 20%", None, None]
    list(lines.take(b"\r 30%"))
    assert lines.state(9.1) == b" 30%"
    ((text, finished, known),) = lines.take(b"\n")
    assert (text, finished, known) == (b" 30%", True, True), "the state that ended the line was said already"
    assert [version.known for version in lines.take(b" 30%\n")] == [False], "another line may say the same"


def test_a_line_in_two_pieces_is_not_torn() -> None:
    lines = Lines()
    list(lines.take(b"step=1 lo"))
    assert lines.state(100.0) is None, "the first look may come long after the last line"
    assert [version.text for version in lines.take(b"ss=0.5\n")] == [b"step=1 loss=0.5"]
    list(lines.take(b"step=2 lo"))
    assert lines.state(100.5) is None
