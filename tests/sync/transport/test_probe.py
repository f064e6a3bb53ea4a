from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from testbed import sync
from testbed.plan import Plan
from testbed.sync.transport.probe import FRAME_BYTES
from tests.sync.controller import Controller, job
from tests.sync.plans import chain, names

pytestmark = pytest.mark.unit

MEMBERS = names(3)
PLAN = Plan(0, MEMBERS, (chain(MEMBERS),))
MOST = 10 * FRAME_BYTES
#: Between rounds: who asks all reports about each one that comes must be done before the next.
PAUSE_S = 0.01


def probed_bytes(controller: Controller, source: str, target: str) -> int:
    reports = [report for report in controller.reports() if report.member == source]
    return sum(sample.bytes for report in reports for sample in report.peers if sample.peer == target)


def reduce_until_swapped(controller: Controller, member: str) -> torch.Tensor:
    """Rounds under the plan and one under the next; what that came to."""
    with sync.join(controller.address, member, "127.0.0.1", patience_s=20) as session:
        while True:
            done = session.allreduce(torch.full((5,), float(MEMBERS.index(member))))
            session.report()
            time.sleep(PAUSE_S)
            if done.epoch:
                return done.tensor


def test_a_probe_reaches_a_peer_that_no_plan_sends_to_and_disturbs_no_round(tmp_path: Path) -> None:
    source, target = MEMBERS[0], MEMBERS[2]  # both ends of the chain
    with ThreadPoolExecutor(len(MEMBERS)) as pool, Controller(tmp_path, PLAN, job()) as controller:
        results = [pool.submit(reduce_until_swapped, controller, member) for member in MEMBERS]
        try:
            controller.await_condition(lambda: bool(controller.reports()))
            controller.probe(source, target, MOST, 20.0)
            controller.probe(source, "nobody", MOST, 20.0)
            # A busy machine's queue ends it early.
            controller.await_condition(lambda: probed_bytes(controller, source, target) >= 2 * FRAME_BYTES)
        finally:
            controller.prepare(replace(PLAN, epoch=1))  # else the rounds would never end
        assert all(torch.equal(result.result(20), torch.ones(5)) for result in results)
        sent = probed_bytes(controller, source, target)
        assert sent <= MOST + 20 * 200  # heads and a greeting
        assert not any(sample.auxiliary_bytes for report in controller.reports() for sample in report.peers)
        assert not any(goodbye.error for goodbye in controller.goodbyes())
