"""What is left, by what is done: in words that promise no more than is known."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.run.terminal.time_left import in_words, time_left

pytestmark = pytest.mark.pure


@given(st.floats(0.1, 1e6), st.integers(1, 1000), st.integers(1, 1000))
def test_things_alike_take_as_long_as_those_before(each_s: float, done: int, more: int) -> None:
    assert time_left(each_s * done, done, done + more) == pytest.approx(each_s * more)


def test_before_the_first_is_done_nothing_is_said() -> None:
    assert time_left(12.0, 0, 5) is None
    assert in_words(None) == ""


def test_after_the_last_nothing_is_left() -> None:
    assert time_left(12.0, 5, 5) is None


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0.2, "about 1 s left"),
        (7.4, "about 7 s left"),
        (44.0, "about 40 s left"),
        (89.9, "about 90 s left"),
        (200.0, "about 3 min left"),
        (5380.0, "about 90 min left"),
        (7300.0, "about 2 h left"),
        (7800.0, "about 2 h 10 min left"),
    ],
)
def test_it_is_said_no_finer_than_it_is_known(seconds: float, words: str) -> None:
    assert in_words(seconds) == words
