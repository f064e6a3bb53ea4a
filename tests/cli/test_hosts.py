"""`--hosts` as it is called: what is refused by name, with what to write instead, before any host is asked anything."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner, Result

from testbed.cli import BAD_INPUT, CANNOT, app
from testbed.emulation import label
from tests.spec.files import EXPERIMENT, TOPOLOGY, write

pytestmark = pytest.mark.local

#: Addresses for examples (RFC 5737): no machine's.
HOSTS = {"hosts": {"a": {"address": "203.0.113.71"}, "b": {"address": "203.0.113.72"}}}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, with a hosts file."""
    monkeypatch.setattr(label, "STATE_ROOT", tmp_path / "state")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "hosts.yaml").write_text(yaml.safe_dump(HOSTS))
    return tmp_path


def called(*words: str | Path) -> Result:
    return CliRunner().invoke(app, [*map(str, words)])


def experiment(folder: Path, **values: Any) -> Path:
    return write(folder, TOPOLOGY, {**EXPERIMENT, **values})


def test_a_host_that_the_file_does_not_have_is_refused_by_its_name(folder: Path) -> None:
    result = called("run", experiment(folder), "--hosts", "a,c")
    assert result.exit_code == BAD_INPUT, result.output
    assert "hosts.yaml" in result.stderr and "'c'" in result.stderr and "a, b" in result.stderr


def test_hosts_may_have_names_that_yaml_takes_for_other_values(folder: Path) -> None:
    result = called("run", experiment(folder), "--hosts", "no, 1")
    assert result.exit_code == BAD_INPUT, result.output
    assert "'no'" in result.stderr and "False" not in result.stderr and "a, b" in result.stderr


def test_without_a_hosts_file_it_says_which_is_missing(folder: Path) -> None:
    result = called("run", experiment(folder), "--hosts", "all", "--hosts-file", "others.yaml")
    assert result.exit_code == BAD_INPUT, result.output
    assert "others.yaml" in result.stderr


def test_a_hosts_file_for_an_experiment_without_hosts_is_refused(folder: Path) -> None:
    result = called("run", experiment(folder), "--hosts-file", "hosts.yaml")
    assert result.exit_code == BAD_INPUT, result.output
    assert "--hosts-file" in result.stderr and "--hosts all" in result.stderr


def test_on_a_machine_outside_of_the_hosts_it_says_where_to_call_it(folder: Path) -> None:
    result = called("run", experiment(folder), "--hosts", "all")
    assert result.exit_code == CANNOT, result.output
    assert "(a, b)" in result.stderr


def test_a_network_where_a_command_trains_is_not_split(folder: Path) -> None:
    (folder / "train.py").write_text("print()\n")
    file = experiment(folder, train={"command": ["python", "train.py"]})
    values = yaml.safe_load(file.read_text())
    for field in ("sync", "compute", "controller", "events"):
        values.pop(field, None)
    file.write_text(yaml.safe_dump(values))
    result = called("run", file, "--hosts", "all")
    assert result.exit_code == BAD_INPUT, result.output
    assert "write instead: " in result.stderr


def test_a_comparison_of_split_networks_is_refused_before_it_begins(folder: Path) -> None:
    result = called("compare", experiment(folder, hosts="all"), "--policies", "mst,star")
    assert result.exit_code == BAD_INPUT, result.output
    assert "`testbed run`" in result.stderr
    assert not (folder / "runs").exists()


def test_a_sweep_of_split_networks_is_refused_before_it_begins(folder: Path) -> None:
    sweep = {"name": "few", "experiment": experiment(folder, hosts="all").name, "axes": {"scale": [1, 0.5]}}
    (folder / "sweep.yaml").write_text(yaml.safe_dump(sweep))
    result = called("sweep", "sweep.yaml")
    assert result.exit_code == BAD_INPUT, result.output
    assert "`testbed run`" in result.stderr
    assert not (folder / "runs").exists()


def test_runs_on_a_cluster_that_is_not_up_are_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("testbed.scaleout.node.CONFIGURATION", folder / "node.json")
    result = called("compare", experiment(folder), "--policies", "mst", "--on", "ray")
    assert result.exit_code == CANNOT, result.output
    assert "cluster up" in result.stderr
