"""What a run's rounds, members and links come to over a stretch of it."""

from __future__ import annotations

import pytest

from testbed.link import LinkState
from testbed.run.conclusion.stretches import Stretch, states_over, stretches
from testbed.run.conclusion.summary import rounds_of
from tests.run.conclusion.test_summary import report

pytestmark = pytest.mark.pure


def rounds(count: int) -> list[dict[str, object]]:
    """A second each, up to when b has the mean; a has it 0.1 s before, and computes for 0.7 s, in even rounds 0.5."""
    found = []
    for number in range(1, count + 1):
        found.append(report(number, "a", number - (0.4 if number % 2 else 0.6), number - 0.1))
        found.append(report(number, "b", number - 0.8, float(number)))
    return found


def test_a_stretch_runs_from_end_to_end_and_tells_what_members_took_between_rounds() -> None:
    reports = rounds(33)
    first, *_, last = found = stretches(rounds_of(reports, 2), reports)
    assert [each.rounds for each in found] == [8, 8, 8, 8]
    assert (first.began_s, first.ended_s, last.ended_s) == (1.0, 9.0, 33.0)
    assert first.compute_s == {"a": pytest.approx(0.6), "b": pytest.approx(0.2)}


def test_a_run_of_one_round_has_no_stretch() -> None:
    for count in (0, 1):
        assert stretches(rounds_of(rounds(count), 2), rounds(count)) == []
    assert [each.rounds for each in stretches(rounds_of(rounds(2), 2), rounds(2))] == [1]


def test_links_count_with_what_they_passed_on_average() -> None:
    def record(at_s: float, rate_bps: float, up: bool = True, link: str = "a->b") -> dict[str, object]:
        return {"at_s": at_s, "link": link, "rate_bps": rate_bps, "delay_s": 0.02, "up": up}

    before = {"a->b": LinkState(8e6, 0.03), "b->a": LinkState(4e6, 0.01), "a->c": LinkState(5e6, 0.01, up=False)}
    records = [
        record(0.5, 1e6),
        record(2.0, 2e6),
        record(6.0, 2e6, up=False),
        record(12.0, 9e6),
        record(3.0, 1, link="x"),
    ]
    states = states_over(Stretch(8, 1.0, 11.0, {}), before, records)
    assert states["a->b"] == LinkState((1 * 8e6 + 4 * 2e6) / 10, 0.02)
    assert states["b->a"] == before["b->a"]
    assert not states["a->c"].up
