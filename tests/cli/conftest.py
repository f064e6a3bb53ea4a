"""What tests of all verbs read, and where they write."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from testbed.emulation import label
from tests.cli.verbs import ROOT
from tests.report.runs import build_run
from tests.spec.files import EXPERIMENT, write


@pytest.fixture(scope="module")
def readable(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what the verbs read; of each, nothing is wrong with it."""
    folder = tmp_path_factory.mktemp("readable")
    write(folder, experiment=EXPERIMENT | {"train": {"model": "cnn", "rounds": 1}, "compute": {"step_time": "60ms"}})
    (folder / "sweep.yaml").write_text(yaml.safe_dump({"name": "one", "experiment": "experiment.yaml"}))
    (folder / "trace.csv").write_text("time_s,rate_mbps\n0,1\n1,2\n2,2\n")
    (folder / "pensieve.log").write_text("0 1.5\n1 2.5\n2 1.0\n")
    (folder / "graph.gml").write_text("graph [ node [ id 0 ] node [ id 1 ] edge [ source 0 target 1 ] ]")
    (folder / "form.py").write_text("def read(text):\n    raise ValueError('no such text')\n")
    run = build_run(folder / "run", rounds=20)
    summary = {"verdict": "trusted", "reasons": [], "sync": {"seconds_per_round": {"p50": 1.0}}}
    (run / "summary.json").write_text(json.dumps(summary))
    return folder


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty current folder, a state of its own, and no engine: nothing that runs on this machine is touched."""
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    monkeypatch.setattr(label, "STATE_ROOT", tmp_path / "state")
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/engine.sock")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))  # of the processes that verbs start
    return here
