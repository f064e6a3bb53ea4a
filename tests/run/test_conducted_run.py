"""A run whose controller chooses how members train."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.run.running import FORKED, NOTHING, Running, interfaces

pytestmark = pytest.mark.physics

TOPOLOGY = {
    "name": "three",
    "sites": {site: {"workers": 1} for site in "abc"},
    "links": [{"between": pair, "rtt": "20ms", "rate": "2mbit"} for pair in (["a", "b"], ["b", "c"], ["a", "c"])],
}
EXPERIMENT: dict[str, Any] = {
    "name": "conducted",
    "topology": "three.yaml",
    # Steps so small that samples teach next to nothing: none is lost by taking them apart.
    "train": {
        **{"model": "cnn", "batch": 16, "rounds": 60, "evaluate_every": 20},
        "optimizer": {"name": "sgd", "learning_rate": 1e-5},
    },
    "compute": {"step_time": "100ms"},
    "sync": {"strategy": "auto", "policy": "auto"},
    "controller": {"period": "1s"},
}


def test_members_go_over_to_local_steps_together_and_end_alike(tmp_path: Path) -> None:
    """A round of gradients takes some 3 s on these links, and a step 0.1 s."""
    (tmp_path / "three.yaml").write_text(yaml.safe_dump(TOPOLOGY))
    (tmp_path / "conducted.yaml").write_text(yaml.safe_dump(EXPERIMENT))
    before = interfaces()
    with Running(tmp_path, str(tmp_path / "conducted.yaml"), program=FORKED) as running:
        assert running.end() == 0, running.output
    assert running.left_behind == NOTHING
    assert interfaces() == before
    summary = running.summary
    assert summary["training"]["identical_parameters"] is True
    # Of 60 steps; the first round has one, and how long the others are follows from how long this machine's took.
    assert 1 < summary["training"]["rounds"] < 60
    swaps = [swap for swap in summary["swaps"] if swap["kind"] == "plan"]
    assert swaps and all(swap["lost_updates"] == swap["duplicated_updates"] == 0 for swap in swaps)
    decisions = [json.loads(line) for line in (running.directory / "decisions.jsonl").read_text().splitlines()]
    chosen = [line for line in decisions if line["reason"] == "training"]
    assert chosen and all(line["training"]["why"] == line["why"] for line in chosen)
    plans = [json.loads(path.read_text()) for path in sorted((running.directory / "plans").iterdir())]
    assert plans[0]["training"]["scheme"] == "gradients"
    assert max(plan["training"]["options"].get("every", 1) for plan in plans) > 1
