"""A run in which a worker's container dies: it is started anew, catches up, and ends with the others' bits."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.run.running import NOTHING, Running, interfaces

pytestmark = [pytest.mark.privileged, pytest.mark.timeout(240)]


def test_a_worker_that_dies_comes_back_in_a_container_of_its_own(tmp_path: Path) -> None:
    before = interfaces()
    sooner = ("--set", "train.rounds=32", "--set", "events=[{round: 8, kill: london-w0}]")
    with Running(tmp_path, "experiments/elastic.yaml", *sooner) as running:
        assert running.end() == 0, running.output
    assert running.left_behind == NOTHING and interfaces() == before
    summary = json.loads((running.directory / "summary.json").read_text())
    manifest = json.loads((running.directory / "manifest.json").read_text())
    assert summary["training"]["identical_parameters"]
    assert [(its["kind"], its["member"]) for its in manifest["passages"]] == [
        ("left", "london-w0"),
        ("came", "london-w0"),
    ]
    happened = [event["kind"] for event in summary["events"] if event["target"] == "london-w0"]
    assert happened[0] == "kill" and sorted(happened) == ["came", "kill", "left", "restart"]
    assert "asked to stop" not in (running.directory / "logs" / "paris-w0.log").read_text()
