"""The options that benchmarks share."""

from __future__ import annotations

import pytest

from benchmarks.support.options import Options

pytestmark = pytest.mark.pure


@pytest.mark.parametrize(
    ("words", "repeats", "seeds", "steps"),
    [
        ([], 5, [1, 2, 3], 100),
        (["--quick"], 2, [1], 20),
        (["--quick", "--repeats", "4", "--seeds", "7,8", "--steps", "50"], 4, [7, 8], 50),
    ],
)
def test_quick_takes_less_of_what_is_not_named(words: list[str], repeats: int, seeds: list[int], steps: int) -> None:
    options = Options("A claim.")
    options.add_repeats(5, quick=2)
    options.add_draws((1, 2, 3), quick=1)
    options.add_steps(100, quick=20)
    given = options.parse(words)
    assert (given.repeats, given.seeds, given.steps) == (repeats, seeds, steps)


@pytest.mark.parametrize(
    ("words", "seeds"),
    [
        ([], 3),
        (["--simulated"], 5),
        (["--simulated", "--seeds", "3"], 3),
        (["--simulated", "--quick"], 1),
    ],
)
def test_simulated_cells_have_seeds_of_their_own_that_an_option_overrides(words: list[str], seeds: int) -> None:
    options = Options("A claim.")
    options.add_campaign(3, 5)
    options.add_argument("--simulated", action="store_true")
    assert options.parse(words).seeds == seeds


@pytest.mark.parametrize("option", ["--seeds", "--cells"])
@pytest.mark.parametrize("value", ["0", "-1", "1.5", "two", ""])
def test_a_number_that_measures_nothing_is_refused(option: str, value: str) -> None:
    options = Options("A claim.")
    options.add_campaign(3)
    with pytest.raises(SystemExit) as refused:
        options.parse([f"{option}={value}"])
    assert refused.value.code == 2
