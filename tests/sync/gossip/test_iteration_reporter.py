from __future__ import annotations

from collections.abc import Callable

import pytest

from testbed.protocol import ControlMessage, Report
from testbed.sync.gossip.iteration_reporter import IterationReporter, StepFigures
from testbed.sync.gossip.mailbox import Mailbox
from testbed.sync.gossip.message_codec import MessageCodec
from testbed.sync.transport.handshake import TransportSettings
from tests.sync.simulated_time import SimulatedTime

pytestmark = pytest.mark.pure


def reporter_of(tell: Callable[[ControlMessage], None], clock: SimulatedTime) -> IterationReporter:
    keys = {"b": bytes(32)}
    mailbox = Mailbox(TransportSettings("a", keys, 1.0), MessageCodec(("a", "b"), 1), {}, lambda *_: False)
    return IterationReporter("a", 0, mailbox, lambda: StepFigures(steps=3, late_steps=1), tell, clock)


def test_an_iteration_is_entered_when_it_is_however_long_it_takes_to_tell_of_the_one_before() -> None:
    """The controller orders all members' iterations by these times: one told late makes the others look ahead."""
    clock, told = SimulatedTime(), []

    def tell(message: ControlMessage) -> None:
        told.append(message)
        clock.now_s += 5.0

    account = reporter_of(tell, clock)
    account.advanced(0)
    entered = []
    for iteration in (1, 2, 3):
        clock.now_s += 1.0
        entered.append(clock.unix())
        account.advanced(iteration)
    assert [report.finished_s for report in told] == entered
    assert [report.finished_s - report.started_s for report in told] == [1.0, 6.0, 6.0]


def test_a_clock_that_is_set_back_makes_no_iteration_shorter() -> None:
    """By an hour, in the midst of one."""
    told: list[ControlMessage] = []
    clock = SimulatedTime(began_s=7200.0)
    account = reporter_of(told.append, clock)
    account.advanced(0)
    clock.zero_s -= 3600.0
    clock.now_s += 2.0
    account.advanced(1)
    (report,) = told
    assert isinstance(report, Report)
    assert report.finished_s - report.started_s == 2.0


def test_a_report_counts_the_steps_and_the_late_ones() -> None:
    told: list[ControlMessage] = []
    account = reporter_of(told.append, SimulatedTime())
    account.advanced(0)
    account.advanced(1)
    (report,) = told
    assert isinstance(report, Report)
    assert (report.steps, report.late_steps) == (3, 1)
