"""A machine's part in a cluster."""

from __future__ import annotations

from pathlib import Path

import pytest

from testbed.run.errors import CannotRun
from testbed.scaleout import node
from testbed.scaleout.node import FIRST_PORT, LAST_PORT, MEASURE_PORT, MONITOR_PORT, PORTS, ClusterNode

pytestmark = pytest.mark.pure


def test_a_machine_s_part_travels_whole_and_shows_no_secret() -> None:
    part = ClusterNode("lab", "10.0.0.2", "10.0.0.1", "a", ["10.0.0.1", "10.0.0.2"], {"token": "s3cret"})
    assert ClusterNode.load(part.dump()) == part
    assert "s3cret" not in repr(part)


def test_every_port_is_among_those_that_are_closed_to_others() -> None:
    assert all(FIRST_PORT <= port <= LAST_PORT for port in (*PORTS.values(), MEASURE_PORT, MONITOR_PORT))
    assert not PORTS["min-worker-port"] <= MEASURE_PORT <= PORTS["max-worker-port"]


def test_without_a_cluster_it_is_said_how_to_start_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node, "CONFIGURATION", tmp_path / "node.json")
    with pytest.raises(CannotRun, match="cluster up"):
        node.read()
