"""The parts of TESTBED_SCHEME, in one process; tests/controller/test_machines.py runs whole scripts."""

from __future__ import annotations

import atexit
from pathlib import Path

import pytest

from testbed.plan import Plan
from testbed.protocol import Goodbye
from testbed.schemes.choice import SchemeChoice
from testbed.schemes.unchanged import UnchangedScript
from testbed.sync import SyncError
from tests.sync.controller import Controller, job
from tests.sync.plans import chain
from tests.sync.strategies.training import model, sgd, step

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
        script.end()
        controller.await_messages(Goodbye, 1)
    said = capsys.readouterr().err.splitlines()
    assert said[0].startswith(f"TESTBED_SCHEME={TEXT}: m0 trains 353 parameters with m0 by local_sgd (every=2)")
    assert said[1] == f"TESTBED_SCHEME={TEXT}: 5 steps, 2 rounds"
