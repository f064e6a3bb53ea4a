from __future__ import annotations

from typing import Any

import pytest

from testbed.run.conclusion.summary import (
    START_S,
    RoundFigures,
    gossip_sync,
    gossip_training,
    last_metric,
    late_part,
    pause_around,
    rounds_of,
    seconds_per_iteration,
    start_seconds,
    summary_lines,
    updates_around,
    wan_bytes,
)

pytestmark = pytest.mark.pure


def report(number: int, member: str, started: float, finished: float, **more: Any) -> dict[str, Any]:
    base = {"epoch": 1, "lost": 0, "duplicated": 0, "metrics": {}}
    return {"round": number, "member": member, "started_s": started, "finished_s": finished, **base, **more}


def test_the_start_of_programs_lasts_until_a_link_is_used() -> None:
    samples = [{"at_s": float(at), "bytes": {"ab": 5, "ba": 10 if at > 12 else 0}} for at in range(50)]
    assert start_seconds(samples, 2.0) == 10.0
    assert start_seconds(samples[:10], 2.0) == 7.0, "no link was used"
    assert start_seconds(samples, 20.0) == 29.0
    late = [{**sample, "bytes": {}} for sample in samples]
    assert start_seconds(late, 2.0) == START_S, "what takes longer than imports do is training"
    assert start_seconds([], 2.0) == 0.0


def test_late_steps_are_counted_and_not_the_rounds_that_they_are_in() -> None:
    """Every third of 30 rounds of 32 steps has one late step. Half of the rounds were reported without their steps."""
    declared = {"a": 0.1, "b": 0.0}
    reports = [report(at, "a", 0, 1, late_s=0.05 * (at % 3 == 0), steps=32, late_steps=at % 3 == 0) for at in range(30)]
    reports += [report(at, "a", 0, 1, late_s=0.0, steps=0, late_steps=0) for at in range(30, 60)]
    reports += [report(at, "b", 0, 1, late_s=0.0, steps=32, late_steps=0) for at in range(60)]
    assert late_part(reports, declared) == pytest.approx(10 / (30 * 32))


def test_reports_that_count_no_steps_are_a_step_each() -> None:
    reports = [report(at, "a", 0, 1, late_s=late_s) for at, late_s in enumerate((0.0, 0.009, 0.02, 0.3))]
    assert late_part(reports, {"a": 0.1}) == 0.5
    assert late_part([*reports, report(9, "b", 0, 1, late_s=0.0)], {"a": 0.1, "b": 0.0}) == 0.5
    assert late_part([], {"a": 0.1}) == 0.0


@pytest.mark.parametrize(
    ("start_s", "sent", "said"),
    [
        (12.0, 5, "12 s of them before the first byte"),
        (START_S, 5, "30 s or more of them before the first byte"),
        (12.0, 0, None),
        (0.4, 5, None),
    ],
)
def test_a_start_is_named_where_a_byte_went_over_a_link(start_s: float, sent: int, said: str | None) -> None:
    summary = {
        "training": {"wall_seconds": 60.0, "start_seconds": start_s, "rounds": 0},
        "sync": {"wan_bytes": sent, "seconds_per_round": {}},
        "swaps": [],
        "not_judged": [],
    }
    (line,) = summary_lines(summary)
    assert ("before the first byte" in line) is (said is not None)
    assert said is None or said in line


def test_a_round_runs_from_the_last_to_enter_to_the_last_to_finish() -> None:
    reports = [
        report(2, "a", 3.0, 4.0),
        report(1, "a", 1.0, 2.5, epoch=1, lost=1),
        report(1, "b", 1.5, 2.0, epoch=2, duplicated=2),
        report(2, "b", 3.5, 3.75),
    ]
    first, second = rounds_of(reports, 2)
    assert first == RoundFigures(number=1, epoch=2, entered_s=1.5, finished_s=2.5, lost=1, duplicated=2)
    assert first.seconds == 1.0
    assert (second.number, second.seconds) == (2, 0.5)


def test_a_round_that_not_all_have_reported_is_left_out() -> None:
    reports = [report(1, "a", 0, 1), report(1, "b", 0, 1), report(2, "a", 1, 2)]
    assert [figures.number for figures in rounds_of(reports, 2)] == [1]
    assert rounds_of([], 2) == []


def rounds(*seconds: float, lost: int = 0) -> list[RoundFigures]:
    """Rounds one behind the other, from 0 on."""
    found, now = [], 0.0
    for number, each in enumerate(seconds):
        found.append(RoundFigures(now, now + each, number, 1, lost, 0))
        now += each
    return found


def test_a_pause_is_what_the_longest_round_that_felt_it_has_above_those_before() -> None:
    figures = rounds(*[1.0] * 10, 3.0, 1.0)
    assert pause_around(figures, 10.5, 10.6) == 2000.0
    assert pause_around(figures, 9.5, 10.5) == 2000.0  # over two rounds
    assert pause_around(figures, 5.5, 5.6) == 0.0


def test_without_a_round_that_felt_it_there_is_no_pause() -> None:
    assert pause_around([], 0, 1) is None
    assert pause_around(rounds(*[1.0] * 10), 10.5, 10.6) is None
    assert pause_around(rounds(1.0, 1.0, 3.0), 2.5, 2.6) is None  # nothing to compare with


def test_updates_are_counted_in_the_touched_rounds_and_the_next() -> None:
    figures = rounds(*[1.0] * 6, lost=1)
    assert updates_around(figures, 2.5, 2.6) == (2, 0)
    assert updates_around(figures, 2.5, 3.5) == (3, 0)
    assert updates_around(figures, 9.0, 9.5) == (0, 0)


def test_a_metric_is_the_mean_of_the_newest_round_that_has_it() -> None:
    reports = [
        report(1, "a", 0, 1, metrics={"loss": 9.0, "accuracy": 0.5}),
        report(2, "a", 1, 2, metrics={"loss": 1.0}),
        report(2, "b", 1, 2, metrics={"loss": 3.0}),
        report(3, "b", 2, 3),
    ]
    assert last_metric(reports, "loss") == 2.0
    assert last_metric(reports, "accuracy") == 0.5
    assert last_metric(reports, "speed") is None


def test_a_training_that_diverged_has_no_last_loss() -> None:
    """A loss that is not finite is recorded as None."""
    reports = [
        report(1, "a", 0, 1, metrics={"loss": 9.0, "accuracy": 0.5}),
        report(1, "b", 0, 1, metrics={"loss": 9.0, "accuracy": 0.5}),
        report(2, "a", 1, 2, metrics={"loss": 3.0}),
        report(2, "b", 1, 2, metrics={"loss": None}),
    ]
    assert last_metric(reports, "loss") is None and last_metric(reports, "accuracy") == 0.5
    ends = {"a": {"metrics": {"test_loss": 1.0, "accuracy": 0.5}}, "b": {"metrics": {"test_loss": None}}}
    trained = gossip_training({"rounds": 2, "members": ends}, reports)
    assert trained == {"rounds": 2, "final_loss": None, "final_test_loss": None, "final_accuracy": 0.5}
    both = {name: {"metrics": {}} for name in "ab"}
    assert gossip_training({"rounds": 2, "members": both}, reports[:3])["final_loss"] == 6.0
    assert gossip_training({"rounds": 2, "members": {"a": both["a"]}}, reports)["final_loss"] == 3.0, "b was lost"


def sample(at_s: float, **counts: int) -> dict[str, Any]:
    return {"at_s": at_s, "bytes": counts}


def test_bytes_are_summed_over_links_from_a_moment_on() -> None:
    samples = [sample(1, ab=100, ba=10), sample(2, ab=150, ba=10), sample(3, ab=250, ba=30)]
    assert wan_bytes(samples, 0) == 170
    assert wan_bytes(samples, 1) == 170  # what came before the first sample is not this run's training
    assert wan_bytes(samples, 2.5) == 120
    assert wan_bytes(samples, 9) == 0
    assert wan_bytes([], 0) == 0


def test_bytes_after_the_clock_was_set_back_count() -> None:
    samples = [sample(7200, ab=100), sample(7201, ab=150), sample(3602, ab=250)]
    assert wan_bytes(samples, 7200.5) == 150


def test_a_link_that_comes_goes_and_comes_again_is_counted_whole() -> None:
    samples = [sample(1, ab=100), sample(2, ab=150, bc=7), sample(3, ab=160), sample(4, ab=160, bc=3)]
    assert wan_bytes(samples, 0) == 60 + 7 + 3


def test_a_link_made_again_between_two_samples_begins_at_zero() -> None:
    assert wan_bytes([sample(1, ab=100), sample(2, ab=30)], 0) == 30


pytestmark = pytest.mark.pure


def iteration_report(member: str, number: int, started_s: float, finished_s: float) -> dict[str, object]:
    return {"member": member, "round": number, "started_s": started_s, "finished_s": finished_s}


def test_a_member_that_leapt_shares_its_time_and_one_that_came_again_made_nothing_in_between() -> None:
    reports = [
        iteration_report("a", 1, 0, 1),
        iteration_report("a", 4, 1, 4),
        iteration_report("b", 1, 0, 2),
        iteration_report("b", 31, 60, 63),
    ]
    swaps = [{"joins": "", "first": 2}, {"joins": "b", "first": None}, {"joins": "b", "first": 30}]
    assert sorted(seconds_per_iteration({"graph_swaps": swaps}, reports)) == [1, 1, 1, 1, 2, 3]


def test_a_member_that_came_again_behind_its_last_iteration_makes_it_again() -> None:
    reports = [
        iteration_report("a", 1, 0, 1),
        iteration_report("a", 2, 1, 2),
        iteration_report("a", 3, 2, 3),
        iteration_report("a", 2, 20, 24),
        iteration_report("a", 3, 24, 29),
        iteration_report("a", 4, 29, 31),
    ]
    swaps = [{"joins": "a", "first": 1}]
    assert seconds_per_iteration({"graph_swaps": swaps}, reports) == [1, 1, 1, 4, 5, 2]


def test_goodput_is_what_is_left_of_members_own_rates_where_they_wait() -> None:
    """Of ten seconds one steps for all, 100 ms each; the other for half of them, 500 ms each."""

    def stepped(member: str, steps: float, stepping_s: float) -> dict[str, object]:
        times = {"compute_s": stepping_s / 4, "paced_s": stepping_s * 3 / 4}
        return {**iteration_report(member, 1, 0, 10), **times, "metrics": {"steps": steps}}

    final = {"graph_swaps": [], "rounds": 1, "gaps": {}}
    value = gossip_sync(final, [stepped("a", 100.0, 10.0), stepped("b", 10.0, 5.0)], batch=8)
    assert value["samples_per_second"] == pytest.approx(8 * 11)
    assert value["goodput"] == pytest.approx(11 / 12)
