"""Runs where nobody waits: one that dies comes back while the others train on."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.run.running import FORKED, NOTHING, Running

pytestmark = pytest.mark.system

SMALL = {
    "topology": "../topologies/smoke.yaml",
    "scale": "1",
    "train.model": "svm",
    "train.partition": "{kind: iid}",
    "compute": "{step_time: 100ms, stragglers: {madrid-w0: 2}}",
    "sync.codec": "fp16",
    "elastic": "{quorum: 2, lost: restart}",
    "events": "[{round: 10, kill: london-w0}]",
}
OF_EACH = {
    "decoupled-diloco": {"train.rounds": "60", "sync.every": "4", "sync.fragments": "2"},
    "halos": {"train.rounds": "60", "sync.every": "4", "sync.accumulate": "2"},
}


@pytest.mark.parametrize("name", OF_EACH)
def test_a_member_that_dies_comes_back_and_nobody_waits(name: str, tmp_path: Path) -> None:
    arguments = [word for key, value in {**SMALL, **OF_EACH[name]}.items() for word in ("--set", f"{key}={value}")]
    with Running(tmp_path, f"experiments/{name}.yaml", *arguments, program=FORKED) as running:
        assert running.end() == 0, running.output
    assert running.left_behind == NOTHING
    summary = running.summary
    assert summary["training"]["identical_parameters"] is (True if name == "decoupled-diloco" else None)
    assert summary["training"]["rounds"] == 60
    assert summary["sync"]["samples_per_second"] > 0 and summary["sync"]["goodput"] > 0
    happened = [event["kind"] for event in summary["events"] if event["target"] == "london-w0"]
    assert sorted(happened) == ["came", "kill", "left", "restart"]
