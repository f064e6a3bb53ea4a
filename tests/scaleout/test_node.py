"""A machine's part in a cluster."""

from __future__ import annotations

import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from testbed.run.errors import CannotRun
from testbed.scaleout import node
from testbed.scaleout.node import CHAIN, FIRST_PORT, LAST_PORT, MEASURE_PORT, MONITOR_PORT, PORTS, ClusterNode

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


def test_over_ipv6_no_other_machine_reaches_a_port(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[str]] = []

    def run(command: list[str], **_: Any) -> SimpleNamespace:
        asked.append(command)
        return SimpleNamespace(returncode=0)

    monkeypatch.setattr(subprocess, "run", run)
    for there in (True, False):
        monkeypatch.setattr(node, "IPV6_ADDRESSES", tmp_path if there else tmp_path / "if_inet6")
        asked.clear()
        node._filter_ports(["10.0.0.1"])
        added = [command for command in asked if command[2] in ("-A", "-I")]
        accepted = [command[4:-2] for command in added if command[-1] == "ACCEPT"]
        assert accepted == [["-i", "lo"], ["-s", "10.0.0.1"], *([["-i", "lo"]] if there else [])]
        for program, closed in (("iptables", True), ("ip6tables", there)):
            own = [command for command in added if command[0] == program]
            assert len([command for command in own if command[3] == "INPUT"]) == (2 if closed else 0)
            assert ([program, "-w", "-A", CHAIN, "-j", "DROP"] in own) == closed


def test_a_start_without_iptables_is_refused_and_leaves_no_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(command: list[str], **_: Any) -> None:
        raise FileNotFoundError(2, "No such file or directory", command[0])

    monkeypatch.setattr(node, "FOLDER", tmp_path / "cluster")
    monkeypatch.setattr(node, "CONFIGURATION", tmp_path / "cluster" / "node.json")
    monkeypatch.setattr(node, "end_runs", lambda: None)
    monkeypatch.setattr(node, "_ray_processes", list)
    monkeypatch.setattr(node, "kill_processes", lambda **_: [])
    monkeypatch.setattr(subprocess, "run", run)
    with pytest.raises(CannotRun, match="apt-get install iptables"):
        node.start(ClusterNode("lab", "10.0.0.2", "10.0.0.1", "a", ["10.0.0.1"], {"token": "s3cret"}))
    assert not (tmp_path / "cluster").exists()


@pytest.mark.parametrize(
    ("words", "code"), [(["stop", "10.0.0.9"], 3), (["stop", "10.0.0.8"], 0), (["stop"], 0), (["stop", "10.0.0.7"], 3)]
)
def test_a_head_ends_its_own_node_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: list[str], code: int
) -> None:
    monkeypatch.setattr(node, "CONFIGURATION", tmp_path / "node.json")
    (tmp_path / "node.json").write_text(ClusterNode("lab", "10.0.0.2", "10.0.0.8", "a").dump())
    stopped: list[bool] = []
    monkeypatch.setattr(node, "stop", lambda: stopped.append(True))
    assert node.main(words) == code
    assert stopped == [True] * (code == 0)
    assert ("lab" in capsys.readouterr().err) == (code == 3)
