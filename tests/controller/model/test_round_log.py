"""The rounds that the controller keeps, and the reports that it takes."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from testbed.controller.model.actions import Contradiction
from testbed.controller.model.round_log import KEPT_REPORTS, KEPT_ROUNDS, KEPT_TRAINS, MOST_AHEAD, SIZED, RoundLog
from testbed.protocol import MeanSlice, Report, Train

pytestmark = pytest.mark.pure

TRAIN = Train(1.0, 0.1, 65536)


def report(member: str, number: int, **changes: object) -> Report:
    return replace(Report(member, number, 0, number, number + 0.5, 0.1, 0.0, 10, 10, 1, 0), **changes)


def book(*members: str) -> RoundLog:
    return RoundLog(lambda _: frozenset(members))


def test_of_complete_rounds_the_newest_are_kept_in_short_and_all_are_counted() -> None:
    rounds = book("a")
    for number in range(1, KEPT_ROUNDS + 51):
        assert rounds.add(report("a", number, arrivals={"b": (TRAIN,) * 9})) is not None
    assert [done.number for done in rounds.complete] == list(range(51, KEPT_ROUNDS + 51))
    assert rounds.count == rounds.lost == rounds.count_under(0) == KEPT_ROUNDS + 50
    assert len(rounds.whole_s(0, 0)) == KEPT_ROUNDS - 1
    assert rounds.whole_s(rounds.count - 3, 0) == [1.0, 1.0, 1.0]


def test_of_a_plan_with_groups_only_rounds_among_all_members_count() -> None:
    rounds = book("a")
    for number, takes_s in enumerate((0.3, 0.2, 0.3, 6.0, 0.2, 0.3, 0.2, 5.0, 0.3), 1):
        began_s = rounds.last.finished_s if rounds.last else 0.0
        rounds.add(report("a", number, started_s=began_s, finished_s=began_s + takes_s))
    assert rounds.whole_s(0, 0, period=4) == pytest.approx([6.0, 5.0])


@pytest.mark.parametrize(
    ("sizes", "cycle", "mean"),
    [
        ((8,), 1, 8),
        ((6, 20, 10), 3, 12),
        ((4, 4, 10), 3, 6),
        ((10, 10, 20, 10, 10, 30), 6, 15),
        ((10, 20, 30, 40, 50, 60, 70, 80, 90), SIZED, 50),
    ],
)
def test_times_of_rounds_whose_sizes_repeat_are_means_of_a_cycle(sizes: tuple[int, ...], cycle: int, mean: int) -> None:
    rounds = book("a", "b")
    rounds.mixed = True
    now_s = 0.0
    for number, size in enumerate(sizes * 9, 1):
        began_s = now_s + (3.0 if size == sizes[0] else 0.0)  # members compute before the first round of a step
        now_s = began_s + size
        for member in "ab":
            rounds.add(report(member, number, started_s=began_s, finished_s=now_s, sent_bytes=1000 * size))
    if 2 * len(sizes) <= SIZED:
        assert rounds.cycle == cycle
        assert rounds.round_bytes == 1000 * mean
        computes = sizes.count(sizes[0])
        assert rounds.whole_s(rounds.count - 2 * cycle, 0) == pytest.approx([mean + 3 * computes / cycle] * 2)
        assert rounds.compute_s()["a"] == pytest.approx(3 * computes / cycle)
    else:
        assert rounds.cycle == cycle
        assert rounds.round_bytes == pytest.approx(1000 * mean, rel=0.25)


def test_members_compute_nothing_between_rounds_that_overlap() -> None:
    """Between the steps of a model in two buckets members compute for 3 s; its second bucket begins before the first
    one is done."""
    rounds = book("a", "b")
    rounds.mixed = True
    for number in range(2 * SIZED):
        began_s = 10.0 * (number // 2) + 2.0 * (number % 2)
        for member in "ab":
            timing = {"started_s": began_s, "finished_s": began_s + 5}
            rounds.add(report(member, number + 1, sent_bytes=10 + number % 2 * 20, **timing))
    assert rounds.cycle == 2
    assert rounds.compute_s() == {"a": pytest.approx(3 / 2), "b": pytest.approx(3 / 2)}


def test_members_that_take_steps_beside_rounds_say_for_how_long() -> None:
    """The steps of two rounds may be in one report."""
    rounds = book("a", "b")
    rounds.overlaps = True
    for number in range(1, 11):
        for member in "ab":
            computed = {"compute_s": 2.0 * (number % 2), "paced_s": 1.0 * (number % 2)}
            rounds.add(report(member, number, started_s=1.5 * number, finished_s=1.5 * number + 1, **computed))
    assert rounds.compute_s() == {"a": pytest.approx(1.5, rel=0.2), "b": pytest.approx(1.5, rel=0.2)}
    assert rounds.whole_s(0, 0, period=2) == pytest.approx([1.5] * 4), "from begin to begin"


def test_one_round_of_another_size_is_forgotten() -> None:
    rounds = book("a", "b")
    rounds.mixed = True
    for number in range(1, SIZED + 2):
        for member in "ab":
            rounds.add(report(member, number, sent_bytes=10 if number == 1 else 1000))
        if number == 1:
            assert rounds.round_bytes == 0, "members may only have compared their parameters"
        else:
            assert (rounds.cycle, rounds.round_bytes) == (1, 1000)


def test_a_lost_member_breaks_no_cycle() -> None:
    present = {"a", "b", "c"}
    rounds = RoundLog(lambda _: frozenset(present))
    rounds.mixed = True
    for number in range(1, 20):
        if number == 9:
            present.remove("c")
            rounds.forget(["c"])
        for member in sorted(present):
            rounds.add(report(member, number, sent_bytes=2 * (len(present) - 1) * 600 // len(present)))
    assert (rounds.cycle, rounds.round_bytes) == (1, 600)


def test_rounds_are_counted_under_the_newest_epochs_alone() -> None:
    rounds = book("a")
    for number in range(1, KEPT_ROUNDS + 3):
        rounds.add(report("a", number, epoch=number))
    assert [rounds.count_under(epoch) for epoch in (1, 2, 3, KEPT_ROUNDS + 2)] == [0, 0, 1, 1]


def test_reports_that_wait_for_others_are_the_newest_and_few() -> None:
    rounds = book("a", "b")
    for number in range(1, 2 * KEPT_REPORTS):
        assert rounds.add(report("a", number, slices=(MeanSlice(0, 9, ("a",), 1.0),))) is None
    waiting = rounds._pending["a"].reports
    assert len(waiting) == KEPT_REPORTS and not any(its.slices for its in waiting.values())
    assert rounds.add(report("b", 2)) is None  # whose other half is given up
    done = rounds.add(report("b", 2 * KEPT_REPORTS - 5))
    assert done is not None and done.number == 2 * KEPT_REPORTS - 5
    assert sorted(waiting) == list(range(2 * KEPT_REPORTS - 4, 2 * KEPT_REPORTS))


def test_trains_that_wait_are_the_newest_and_few() -> None:
    rounds = book("a", "b")
    for number in range(1, 100):
        rounds.add(report("a", number, arrivals={"b": (TRAIN,) * (KEPT_TRAINS // 10)}))
    assert len(rounds._pending["a"].reports) == 10


@pytest.mark.parametrize(
    ("number", "rule"),
    [(5, "twice"), (4, "order"), (6 + MOST_AHEAD, "ahead")],
)
def test_a_round_that_a_member_cannot_be_in_is_refused(number: int, rule: str) -> None:
    rounds = book("a", "b")
    for member in "ab":
        rounds.add(report(member, 5))
    with pytest.raises(Contradiction) as caught:
        rounds.add(report("a", number))
    assert (caught.value.rule, caught.value.member, caught.value.round) == (rule, "a", number)
    assert rounds.add(report("a", 6)) is None and rounds.add(report("b", 6)) is not None


def test_a_member_that_joins_again_may_be_at_any_round() -> None:
    rounds = book("a", "b")
    rounds.add(report("a", 7))
    rounds.forget({"a"})
    assert rounds.add(report("a", 3)) is None


def test_a_figure_that_one_member_s_training_lost_has_no_mean() -> None:
    rounds = book("a", "b")
    rounds.add(report("a", 1, metrics={"loss": None, "norm": 1.0}))
    done = rounds.add(report("b", 1, metrics={"loss": 2.0, "norm": 3.0, "samples_per_s": None}))
    assert done is not None and rounds.complete[-1].metrics == {"loss": None, "norm": 2.0, "samples_per_s": None}
    assert done.rates() == {}
