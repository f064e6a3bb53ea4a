"""The times of reports during a round, on simulated time; and one test on a thread."""

from __future__ import annotations

import threading
from math import ceil
from random import Random

import pytest
import torch

from testbed.protocol import Report
from testbed.sync.allreduce.round import RoundResult, Tally
from testbed.sync.reports import EACH_S, ProgressReporter, RoundReports, StepReport
from tests.sync.simulated_time import SimulatedTime
from tests.waiting import PATIENCE_S

END_S = 40.0


def reports_of(rounds: list[tuple[float, float]]) -> list[float]:
    """Run a reporter over rounds, given as begin and end in seconds. Returns the times of its reports in seconds."""
    time, reported = SimulatedTime(), []
    reporter = ProgressReporter(lambda: reported.append(time.monotonic()), time)
    for began_s, ended_s in rounds:
        time.call_later(began_s, reporter.round_began)
        time.call_later(ended_s, reporter.round_ended)
    time.call_later(END_S, reporter.close)
    reporter.run()
    return reported


@pytest.mark.pure
@pytest.mark.parametrize("seed", range(5))
def test_a_round_is_reported_at_all_multiples(seed: int) -> None:
    draw = Random(seed)
    began_s = draw.uniform(0.0, 5.0)
    ended_s = began_s + draw.uniform(1.0, 10.0)
    first = ceil(began_s / EACH_S)
    last = ceil(ended_s / EACH_S)
    assert reports_of([(began_s, ended_s)]) == pytest.approx([EACH_S * number for number in range(first, last)])


@pytest.mark.pure
def test_rounds_that_overlap_are_reported_until_the_last_ends() -> None:
    assert reports_of([(0.1, 0.9), (0.8, 1.6)]) == pytest.approx([0.25, 0.5, 0.75, 1.0, 1.25, 1.5])


@pytest.mark.pure
def test_rounds_between_two_multiples_are_not_reported() -> None:
    rounds = [(EACH_S * number + 0.05, EACH_S * number + 0.2) for number in range(100)]
    assert reports_of(rounds) == []


@pytest.mark.pure
def test_the_last_of_several_rounds_is_reported_with_the_steps() -> None:
    told: list[Report] = []
    reports = RoundReports("a", tuple, dict, told.append)
    for number in (1, 2):
        reports.add(RoundResult(torch.zeros(1), number, 0, True, 1.0, 2.0, 0, 0, (), Tally()))
    reports.tell(StepReport(steps=8, late_steps=3))
    assert [(report.round, report.steps, report.late_steps) for report in told] == [(1, 0, 0), (2, 8, 3)]


@pytest.mark.local
def test_a_thread_reports_and_ends_when_closed() -> None:
    reported = threading.Semaphore(0)
    reporter = ProgressReporter(reported.release)
    reporter.start("a")
    reporter.round_began()
    assert all(reported.acquire(timeout=PATIENCE_S) for _ in range(3))
    reporter.close()
    assert not any(thread.name == "a: progress" for thread in threading.enumerate())
