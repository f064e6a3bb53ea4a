"""The seconds until runs reached the loss that all of them reached."""

from __future__ import annotations

from pathlib import Path

import pytest

from testbed.run.sweep.comparison import ROUNDS, common_loss, read_curve, seconds_to
from tests.report.runs import MEMBERS, build_run

pytestmark = pytest.mark.pure


def falling(seconds: float, to: float) -> list[tuple[float, float]]:
    """A loss that falls from 2 to `to` in 100 rounds of so many seconds."""
    return [(seconds * number, 2 - (2 - to) * number / 100) for number in range(1, 101)]


def test_the_loss_is_the_lowest_that_all_reached_and_the_faster_run_reaches_it_sooner() -> None:
    far, near = falling(0.5, to=0.1), falling(1.0, to=0.5)
    loss = common_loss([far, near, []])
    assert loss == pytest.approx(0.5, abs=0.1)
    assert seconds_to(loss, near) == 100.0
    taken = seconds_to(loss, far)
    assert taken is not None and 35 < taken < 45
    assert seconds_to(loss, []) is None and seconds_to(0.01, far) is None and common_loss([[]]) is None


def test_one_lucky_round_is_no_loss_that_was_reached() -> None:
    flat = [(float(second), 1.0) for second in range(4 * ROUNDS)]
    lucky = [*flat[:20], (20.0, 0.0), *flat[21:]]
    assert seconds_to(0.5, lucky) is None


def test_a_run_s_curve_is_the_mean_over_its_members_since_training_began(tmp_path: Path) -> None:
    run = build_run(tmp_path / "run", rounds=30)
    curve = read_curve(run)
    assert len(curve) == 30 and len((run / "rounds.jsonl").read_text().splitlines()) == 30 * len(MEMBERS)
    assert 0 < curve[0][0] < 2 and curve[0][1] == pytest.approx(2.3, abs=0.1)
    assert read_curve(tmp_path / "none") == ()


def test_damaged_lines_are_left_out_of_a_curve(tmp_path: Path) -> None:
    whole, damaged, other = (build_run(tmp_path / name, rounds=30) for name in ("whole", "damaged", "other"))
    deep = '{"deep": ' + "[" * 100_000
    with (damaged / "rounds.jsonl").open("a") as rounds:
        rounds.write(f'{{"round": "x"}}\n{deep}\n{{"round": 3')
    assert read_curve(damaged) == read_curve(whole) != ()
    (other / "manifest.json").write_text(deep)
    assert read_curve(other) == ()
