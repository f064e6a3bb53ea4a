"""Runs without a centre in which workers die: the others go on over the graph that is left, and let one in again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from testbed.emulation.daemon import client
from tests.run.running import FORKED, NOTHING, TRAINS, Running
from tests.waiting import until

pytestmark = pytest.mark.system

#: A double ring stays connected without any two of its members.
EXPERIMENT = {
    "name": "two-die",
    "topology": "rack.yaml",
    "train": {
        "model": "svm",
        "batch": 16,
        "optimizer": {"name": "sgd", "learning_rate": 0.05},
        "rounds": 40,
        "evaluate_every": 10,
    },
    # Eleven seconds are left after the second event, for a busy host to come to kill in.
    "compute": {"step_time": "300ms"},
    "sync": {"strategy": "hop", "graph": "double-ring", "backup": 1, "max_ig": 4},
    "events": [{"round": 2, "kill": "rack-w2"}, {"round": 4, "kill": "rack-w5"}],
}
TOPOLOGY = {"name": "rack", "sites": {"rack": {"workers": 8}}, "lan": {"rate": "1gbit", "delay": "0.1ms"}}


def test_the_others_finish_when_two_die(tmp_path: Path) -> None:
    (tmp_path / "rack.yaml").write_text(yaml.safe_dump(TOPOLOGY))
    (tmp_path / "two-die.yaml").write_text(yaml.safe_dump(EXPERIMENT))
    with Running(tmp_path, str(tmp_path / "two-die.yaml"), "--quiet", "--json", program=FORKED) as running:
        assert running.end() == 0, running.output
    assert running.left_behind == NOTHING
    summary = running.summary
    told = json.loads(running.lines[-1])
    assert (tmp_path / told.pop("directory")).resolve() == running.directory and told == summary
    gap = summary["sync"]["gap"]
    assert sorted(death["member"] for death in gap["deaths"]) == ["rack-w2", "rack-w5"]
    assert all(0 < death["iteration"] < 40 for death in gap["deaths"]) and gap["violations"] == []
    assert summary["training"]["rounds"] == 40
    assert [event["target"] for event in summary["events"] if event["kind"] == "kill"] == ["rack-w2", "rack-w5"]
    left = {path.name for path in running.directory.iterdir()}
    assert "report.html" in left and not left & {"plans", "views", "decisions.jsonl", "estimates.jsonl"}


def test_one_that_dies_comes_again_at_the_iteration_of_the_others(tmp_path: Path) -> None:
    sooner = ("--set", "train.rounds=80", "--set", "events=[{round: 8, kill: london-w0}]")
    with Running(tmp_path, "experiments/hop-elastic.yaml", *sooner) as running:
        running.wait_for(TRAINS)
        until(lambda: running.happened("kill", "london-w0"))
        # Iterations of a second, since nobody is more than four ahead, until it is back: else all of them may be over
        # on a host that starts it slowly.
        network = client(running.directory.name)
        network.change_link("paris->madrid", {"delay": "1s"})
        until(lambda: running.happened("came", "london-w0"))
        network.change_link("paris->madrid", {"delay": None})
        assert running.end() == 0, running.output
    assert running.left_behind == NOTHING
    summary = running.summary
    [swap] = json.loads((running.directory / "final.json").read_text())["graph_swaps"]
    assert swap["joins"] == "london-w0" and 8 < swap["first"] < 80
    assert summary["sync"]["gap"]["violations"] == [] and summary["training"]["rounds"] == 80
    happened = [event["kind"] for event in summary["events"] if event["target"] == "london-w0"]
    assert happened[0] == "kill" and sorted(happened) == ["came", "kill", "left", "restart"]
