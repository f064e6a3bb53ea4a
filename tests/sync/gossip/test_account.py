from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from testbed.protocol import ControlMessage, Report
from testbed.sync.gossip.account import Account, StepFigures
from testbed.sync.gossip.mailbox import Mailbox
from testbed.sync.gossip.message_codec import MessageCodec
from testbed.sync.transport.settings import TransportSettings

pytestmark = pytest.mark.local


def account_of(tell: Callable[[ControlMessage], None]) -> tuple[Account, Mailbox]:
    keys = {"b": bytes(32)}
    mailbox = Mailbox(TransportSettings("a", keys, 1.0), MessageCodec(("a", "b"), 1), {}, lambda *_: False)
    return Account("a", 0, mailbox, StepFigures, tell), mailbox


def test_an_iteration_is_entered_when_it_is_however_long_it_takes_to_tell_of_the_one_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The controller orders all members' iterations by these times: one told late makes the others look ahead."""
    clock, told = [1000.0], []

    def tell(message: ControlMessage) -> None:
        told.append(message)
        clock[0] += 5.0

    monkeypatch.setattr(time, "time", lambda: clock[0])
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    account, mailbox = account_of(tell)
    account.advanced(0)
    entered = []
    for iteration in (1, 2, 3):
        clock[0] += 1.0
        entered.append(clock[0])
        account.advanced(iteration)
    assert [report.finished_s for report in told] == entered
    assert [report.finished_s - report.started_s for report in told] == [1.0, 6.0, 6.0]
    mailbox.queue.close()


def test_a_clock_that_is_set_back_makes_no_iteration_shorter(monkeypatch: pytest.MonkeyPatch) -> None:
    """By an hour, in the midst of one."""
    told: list[ControlMessage] = []
    account, mailbox = account_of(told.append)
    account.advanced(0)
    began = time.time()
    monkeypatch.setattr(time, "time", lambda: began - 3600)
    account.advanced(1)
    (report,) = told
    assert isinstance(report, Report)
    assert 0 <= report.finished_s - report.started_s < 3600
    mailbox.queue.close()
