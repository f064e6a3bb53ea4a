"""A run whose groups each exchange in rounds of their own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from testbed.spec.train import PARAMETERS
from tests.run.running import FORKED, NOTHING, Running, interfaces

pytestmark = pytest.mark.physics

TOPOLOGY = {
    "name": "three",
    "sites": {"a": {"workers": 2}, "b": {"workers": 2, "speed": 0.5}, "c": {"workers": 1}},
    "lan": {"rate": "1gbit", "delay": "0.1ms"},
    "links": [
        {"between": ["a", "b"], "rtt": "20ms", "rate": "20mbit"},
        {"between": ["b", "c"], "rtt": "40ms", "rate": "10mbit"},
        {"between": ["a", "c"], "rtt": "30ms", "rate": "20mbit"},
    ],
}
EXPERIMENT: dict[str, Any] = {
    "name": "staggered",
    "topology": "three.yaml",
    "train": {"model": "cnn", "batch": 16, "rounds": 14, "partition": {"kind": "sites", "alpha": 0.5}},
    "compute": {"step_time": "100ms"},
    "sync": {
        "strategy": "staggered",
        "policy": "cpn",
        "every": 4,
        "staleness": 1,
        "codec": "fp16",
        "options": {"groups": "sites", "spatial": "sharded"},
        "outer": {"learning_rate": 1.0, "momentum": 0.0},
    },
}


def exchanges_of(period: int, phase: int) -> int:
    """How often a group exchanges in all rounds; in the last one always."""
    rounds = EXPERIMENT["train"]["rounds"]
    return len({rounds} | {number for number in range(1, rounds + 1) if number % period == phase})


def test_all_end_with_the_same_parameters(tmp_path: Path) -> None:
    before = interfaces()
    (tmp_path / "three.yaml").write_text(yaml.safe_dump(TOPOLOGY))
    (tmp_path / "staggered.yaml").write_text(yaml.safe_dump(EXPERIMENT))
    with Running(tmp_path, str(tmp_path / "staggered.yaml"), program=FORKED) as running:
        assert running.end() == 0, running.output
    assert running.left_behind == NOTHING and interfaces() == before
    summary = running.summary
    assert summary["training"]["identical_parameters"] is True
    assert summary["training"]["rounds"] == 14
    assert summary["sync"]["policy"] == "cpn" and summary["sync"]["strategy"] == "staggered"
    reports = [json.loads(line) for line in (running.directory / "rounds.jsonl").read_text().splitlines()]
    assert {report["member"] for report in reports if "test_loss" in report["metrics"]} == {"a-w0"}
    groups = json.loads((running.directory / "manifest.json").read_text())["groups"]
    assert [set(team["members"]) for team in groups["teams"]] == [{"a-w0", "a-w1"}, {"b-w0", "b-w1"}, {"c-w0"}]
    # An exchange takes two thirds of the model there and back over the WAN, in 16 bits: the last third lies at home.
    exchanges = sum(exchanges_of(team["period"], team["phase"]) for team in groups["teams"])
    assert 1 < summary["sync"]["wan_bytes"] / (exchanges * 2 * 2 / 3 * 2 * PARAMETERS["cnn"]) < 1.15
