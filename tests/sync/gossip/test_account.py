from __future__ import annotations

import time

import pytest

from testbed.protocol import ControlMessage, Report
from testbed.sync.gossip.account import Account, StepFigures
from testbed.sync.gossip.mailbox import Mailbox
from testbed.sync.gossip.message_codec import MessageCodec
from testbed.sync.transport.settings import TransportSettings

pytestmark = pytest.mark.unit


def test_a_clock_that_is_set_back_makes_no_iteration_shorter(monkeypatch: pytest.MonkeyPatch) -> None:
    """By an hour, in the midst of one."""
    mailbox = Mailbox(TransportSettings("a", "secret", 1.0), MessageCodec(("a", "b"), 1), {}, lambda *_: False)
    told: list[ControlMessage] = []
    account = Account("a", 0, mailbox, StepFigures, told.append)
    account.advanced(0)
    began = time.time()
    monkeypatch.setattr(time, "time", lambda: began - 3600)
    account.advanced(1)
    (report,) = told
    assert isinstance(report, Report)
    assert 0 <= report.finished_s - report.started_s < 3600
    mailbox.queue.close()
