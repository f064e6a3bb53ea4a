"""`--renew-image` of `run` and `sweep`: each image of the runs is built again once, before the first run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from testbed.cli import app
from testbed.emulation.containers import engine, program_image
from testbed.errors import BAD_INPUT, FAILED
from testbed.run import execute
from testbed.run.execute import Executed

pytestmark = pytest.mark.local

ROOT = Path(__file__).parents[2]


@pytest.fixture
def done(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """The images that were built again, and "run" for each run, in their order. Nothing is built and nothing runs."""
    done: list[str] = []

    def build(client: object, wanted: str, progress: object, renew: bool = False) -> str:
        assert renew
        done.append(Path(wanted).name)
        return "testbed-requirements:1"

    def run(*_: object) -> Executed:
        done.append("run")
        return Executed(False, "suspect", tmp_path / "run")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setattr(engine, "connect", lambda: None)
    monkeypatch.setattr(program_image, "program_image", build)
    monkeypatch.setattr(execute, "execute", run)
    return done


def experiment(folder: Path, **train: object) -> Path:
    for name in ("requirements.txt", "other.txt"):
        (folder / name).write_text("numpy\n")
    content = {"name": "e", "topology": str(ROOT / "topologies/smoke.yaml"), "train": {"command": ["true"], **train}}
    (folder / "e.yaml").write_text(yaml.safe_dump(content))
    return folder / "e.yaml"


def sweep(folder: Path, axes: dict[str, Any]) -> Path:
    (folder / "s.yaml").write_text(yaml.safe_dump({"name": "s", "experiment": "e.yaml", "axes": axes, "seeds": [1, 2]}))
    return folder / "s.yaml"


def invoke(*words: str | Path) -> tuple[int, str]:
    result = CliRunner().invoke(app, [str(word) for word in words])
    return result.exit_code, result.output


def test_a_run_begins_once_its_image_is_built_again(done: list[str], tmp_path: Path) -> None:
    file = experiment(tmp_path, image="requirements.txt")
    assert invoke("run", file, "--renew-image")[0] == FAILED
    assert done == ["requirements.txt", "run"]
    assert invoke("run", file)[0] == FAILED
    assert done == ["requirements.txt", "run", "run"]


def test_a_sweep_builds_each_image_once(done: list[str], tmp_path: Path) -> None:
    experiment(tmp_path)
    file = sweep(tmp_path, {"train.image": ["requirements.txt", "other.txt"], "scale": [1, 0.5]})
    assert invoke("sweep", file, "--renew-image")[0] == FAILED
    assert done == ["requirements.txt", "other.txt", *["run"] * 8]


def test_nothing_runs_where_there_is_no_image_to_build(done: list[str], tmp_path: Path) -> None:
    file = experiment(tmp_path)
    for words in (("run", file), ("sweep", sweep(tmp_path, {"scale": [1, 0.5]})), ("run", "smoke")):
        code, said = invoke(*words, "--renew-image")
        assert code == BAD_INPUT and "train.image" in said, said
    code, said = invoke("sweep", sweep(tmp_path, {"train.image": ["requirements.txt"]}), "--renew-image", "--on", "ray")
    assert code == BAD_INPUT and "--on" in said
    assert not done
