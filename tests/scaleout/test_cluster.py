"""Clusters: what is kept of a hosts file, and what a machine's part in one is."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from testbed.run.errors import CannotRun
from testbed.scaleout import node
from testbed.scaleout.cluster import kept
from testbed.scaleout.node import FIRST_PORT, LAST_PORT, MEASURE_PORT, MONITOR_PORT, PORTS, ClusterNode
from testbed.spec.hosts import Hosts

pytestmark = pytest.mark.pure


def test_what_is_kept_of_a_hosts_file_names_the_same_from_another_folder(tmp_path: Path) -> None:
    file = tmp_path / "hosts.yaml"
    hosts = {"a": {"address": "10.0.0.1", "key": "keys/id"}, "b": {"address": "10.0.0.2", "port": 2222}}
    file.write_text(yaml.safe_dump({"known_hosts": "known", "hosts": hosts}))
    loaded = Hosts.load(file)
    (tmp_path / "elsewhere").mkdir()
    again = tmp_path / "elsewhere" / "hosts.yaml"
    again.write_text(kept(loaded))
    other = Hosts.load(again)
    assert other.path(other.spec.known_hosts or "") == (tmp_path / "known").resolve()
    assert other.path(other.by_name["a"].key or "") == (tmp_path / "keys" / "id").resolve()
    assert other.by_name["b"] == loaded.by_name["b"]


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
