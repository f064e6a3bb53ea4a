"""The options that benchmarks share."""

from __future__ import annotations

import pytest

from benchmarks.support.options import Options

pytestmark = pytest.mark.pure


@pytest.mark.parametrize(
    ("words", "repeats", "seeds"),
    [
        ([], 5, [1, 2, 3]),
        (["--quick"], 2, [1]),
        (["--quick", "--repeats", "4", "--seeds", "7,8"], 4, [7, 8]),
    ],
)
def test_quick_takes_less_of_what_is_not_named(words: list[str], repeats: int, seeds: list[int]) -> None:
    options = Options("A claim.")
    options.add_repeats(5, quick=2)
    options.add_draws((1, 2, 3), quick=1)
    given = options.parse(words)
    assert (given.repeats, given.seeds) == (repeats, seeds)
