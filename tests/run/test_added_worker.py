"""A run to which a person adds a worker while it trains: it joins, what it learns counts, and nothing of it is left."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from testbed.emulation.daemon import client
from testbed.report.record import RunRecord
from testbed.telemetry.store import read_records
from tests.cli.standing import testbed, write
from tests.run.running import NOTHING, TRAINS, Running
from tests.waiting import until

pytestmark = pytest.mark.system

ROUNDS = 32
ADDED = "lima-w1"


def experiment(folder: Path) -> Path:
    """Two workers, of which one may be lost, and others may come."""
    topology = write(folder, "pair", {"quito": 1, "lima": 1}, ("quito", "lima", "50mbit", "5ms"))
    value = {
        "name": "added",
        "topology": topology.name,
        "train": {"model": "cnn", "batch": 16, "rounds": ROUNDS, "evaluate_every": ROUNDS},
        "compute": {"step_time": "250ms"},
        "sync": {"policy": "mst"},
        "elastic": {"quorum": 1, "lease": "60s"},
    }
    file = folder / "added.yaml"
    file.write_text(yaml.safe_dump(value))
    return file


def test_a_worker_that_is_added_takes_part_in_rounds(tmp_path: Path) -> None:
    with Running(tmp_path, str(experiment(tmp_path))) as running:
        running.wait_for(TRAINS)
        name = running.directory.name
        # Rounds of 2.4 s and more, until it takes part: else all would be over on a host that starts it slowly.
        client(name).change_link("quito->lima", {"rate": "2mbit"})
        testbed("worker", "add", "rome", "--name", name, code=2)
        assert testbed("worker", "add", "lima", "--name", name) == f"worker {ADDED} is up at 10.0.1.3\n"
        # Again and again until one is answered: the slow link's queue, which gradients keep full, drops some of them.
        testbed("network", "exec", "--name", name, "quito-w0", "--", "ping", "-c", "1", "-w", "60", "10.0.1.3")
        until(lambda: running.happened("came", ADDED))
        client(name).change_link("quito->lima", {"rate": None})
        assert running.end() == 0, running.output
    assert running.left_behind == NOTHING
    summary = running.summary
    manifest = json.loads((running.directory / "manifest.json").read_text())
    added = {"worker": ADDED, "site": "lima", "address": "10.0.1.3", "shard": 2, "shards": 3}
    assert manifest["added_workers"] == [added] and ADDED in manifest["limits"]["memory_bytes"]
    changed = ("change", "quito->lima")
    assert [(its["kind"], its["target"]) for its in manifest["by_hand"]] == [changed, ("add", ADDED), changed]
    assert any("changed by hand" in its and f"add {ADDED} at" in its for its in summary["reasons"])
    (came,) = manifest["membership_events"]
    assert (came["kind"], came["member"]) == ("came", ADDED)
    reports = list(read_records(running.directory / "rounds.jsonl"))
    own = {its["round"]: its for its in reports if its["member"] == ADDED}
    assert list(own) == list(range(came["round"], ROUNDS + 1)) and len(own) > 1
    plans = {epoch: plan.members for epoch, plan in RunRecord.read(running.directory).plans.items()}
    for report in reports:
        taking_part = {its["member"] for its in reports if its["round"] == report["round"]}
        assert taking_part == set(plans[report["epoch"]]) and not report["lost"]
    assert summary["training"]["rounds"] == ROUNDS and summary["training"]["identical_parameters"]
