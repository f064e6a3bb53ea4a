"""The parts of TESTBED_SCHEME, in one process; tests/controller/test_machines.py runs whole scripts."""

from __future__ import annotations

import atexit
import os
from pathlib import Path

import pytest
from torch.amp import GradScaler

from testbed.plan import Plan
from testbed.protocol import Goodbye
from testbed.schemes.choice import SchemeChoice
from testbed.schemes.unchanged import UnchangedScript, begin_with_scalers
from testbed.sync import SyncError
from tests.sync.controller import Controller, job
from tests.sync.plans import chain
from tests.sync.strategies.training import batch, model, sgd, step

pytestmark = pytest.mark.local

TEXT = "local_sgd:every=2"


def test_a_member_joins_at_its_first_step_and_leaves_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    script, net = UnchangedScript(SchemeChoice.parse(TEXT), TEXT), model()
    optimizer = sgd(net)
    monkeypatch.delenv("TESTBED_CONTROLLER", raising=False)
    for _ in range(2):  # a script that goes on after it is told again
        with pytest.raises(SyncError) as caught:
            script.before_step(optimizer)
        assert caught.value.field == "TESTBED_CONTROLLER"
    with Controller(tmp_path, Plan(0, ("m0",), (chain(("m0",)),)), job()) as controller:
        monkeypatch.setenv("TESTBED_CONTROLLER", controller.address)
        monkeypatch.setenv("TESTBED_MEMBER", "m0")
        monkeypatch.setenv("TESTBED_LISTEN", "127.0.0.1")
        script.before_step(optimizer)
        atexit.unregister(script.end)
        for number in range(5):
            step(net, optimizer, "m0", number)
            script.before_step(optimizer)
        with pytest.raises(ValueError, match=r"testbed.schemes.wrap"):
            script.before_step(sgd(net))
        with monkeypatch.context() as forked:
            forked.setattr(os, "getpid", lambda: -1)
            script.end()
        assert not controller.goodbyes(), "a forked child leaves the run alone"
        script.end()
        controller.await_messages(Goodbye, 1)
    said = capsys.readouterr().err.splitlines()
    assert said[0].startswith(f"TESTBED_SCHEME={TEXT}: m0 trains 353 parameters with m0 by local_sgd (every=2)")
    assert said[1] == f"TESTBED_SCHEME={TEXT}: 5 steps, 2 rounds"


def test_a_first_step_that_a_scaler_leaves_out_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A member whose first gradients overflow takes as many steps as the others."""
    monkeypatch.setattr(GradScaler, "step", GradScaler.step)  # so that all that is put around it is gone afterwards
    script, net = UnchangedScript(SchemeChoice.parse(TEXT), TEXT), model()
    begin_with_scalers(script)
    optimizer, scaler = sgd(net), GradScaler("cpu", init_scale=2.0)
    with Controller(tmp_path, Plan(0, ("m0",), (chain(("m0",)),)), job()) as controller:
        monkeypatch.setenv("TESTBED_CONTROLLER", controller.address)
        monkeypatch.setenv("TESTBED_MEMBER", "m0")
        monkeypatch.setenv("TESTBED_LISTEN", "127.0.0.1")
        for number in range(4):
            inputs, targets = batch("m0", number)
            optimizer.zero_grad()
            factor = float("inf") if number == 0 else 1.0
            scaler.scale((net(inputs) - targets).square().mean() * factor).backward()
            scaler.step(optimizer)
            scaler.update()
            assert script.begun
        atexit.unregister(script.end)
        assert scaler.get_scale() == 1.0, "the first step was left out"
        script.end()
        controller.await_messages(Goodbye, 1)
    assert capsys.readouterr().err.splitlines()[-1].endswith("4 steps, 2 rounds")
