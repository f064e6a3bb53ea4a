"""The wrapping of lines for a narrow terminal: between phrases, with nothing lost."""

from __future__ import annotations

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from rich.text import Text

from testbed.run.terminal.display import Display
from testbed.run.terminal.wrap import folded

pytestmark = pytest.mark.pure

SWAP = "  plan 1 in force from round 48: saves 38% of a round at the links' rates now, more than 10% wanted"
WORDS = st.lists(st.text("abcdefghijklm", min_size=1, max_size=12), min_size=1, max_size=30)


@given(WORDS, st.integers(0, 6), st.integers(20, 80), st.lists(st.sampled_from(["", "", ",", ";", ":"]), min_size=30))
def test_no_word_is_lost_and_no_line_too_long(words: list[str], indent: int, width: int, ends: list[str]) -> None:
    given_text = " " * indent + " ".join(word + end for word, end in zip(words, ends, strict=False))
    lines = folded(Text(given_text), width).plain.split("\n")
    assert " ".join(lines).split() == given_text.split()
    assert all(len(line) <= width or len(line.split()) == 1 for line in lines)
    assert len({len(line) - len(line.lstrip()) for line in lines[1:]}) <= 1


@pytest.mark.parametrize("width", [40, 60, 80, 99])
def test_a_phrase_that_fits_stays_whole(width: int) -> None:
    lines = folded(Text(SWAP), width).plain.split("\n")
    assert any("more than 10% wanted" in line for line in lines)
    assert folded(Text(SWAP), 200).plain == SWAP


def test_styles_go_along() -> None:
    text = folded(Text.from_markup("first, [bold]second that is long[/], third"), 24)
    assert text.plain == "first,\n  second that is long,\n  third"
    (span,) = (span for span in text.spans if span.style == "bold")
    assert text.plain[span.start : span.end] == "second that is long"


def said(**console: object) -> str:
    stream = io.StringIO()
    Display(Console(file=stream, width=80, **console)).say(f"[bold]{SWAP}[/]")  # type: ignore[arg-type]
    return stream.getvalue()


def test_a_terminal_gets_whole_phrases_and_a_file_whole_lines() -> None:
    assert said() == f"{SWAP}\n"
    shown = said(force_terminal=True, color_system=None)
    assert all(len(line) <= 80 for line in shown.splitlines())
    assert "\n    more than 10% wanted\n" in shown
