"""action.yml: its steps are bash, and the one that judges does so. `make test-action` runs all of them."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.action import ACTION, EXPRESSION, Runner
from tests.report.runs import build_run

pytestmark = pytest.mark.local


def test_its_steps_are_bash_and_what_a_user_says_comes_to_them_in_the_environment() -> None:
    for step in ACTION["runs"]["steps"]:
        if "run" in step:
            assert "${{" not in step["run"], "what a user writes would be read as a program"
            assert all(EXPRESSION.fullmatch(value) for value in step.get("env", {}).values())
            subprocess.run(["bash", "-n", "-c", step["run"]], check=True)


def test_a_run_is_judged_beside_the_baseline(tmp_path: Path) -> None:
    run = build_run(tmp_path / "run", rounds=20)
    summary = json.loads((run / "summary.json").read_text())
    summary["sync"]["seconds_per_round"]["p50"] /= 2
    (tmp_path / "before.json").write_text(json.dumps(summary))
    outputs = {"run": {"directory": str(run)}}
    alone = Runner(tmp_path, {}, {**outputs})
    assert alone.run("Judge it") == 0
    assert alone.summary.startswith("passed: trusted")
    beside = Runner(tmp_path, {"baseline": "before.json"}, {**outputs})
    assert beside.run("Judge it") == 1
    assert "100% more than the baseline's" in beside.summary


@pytest.mark.parametrize(("script", "kept"), [("exit 2", None), ("mkdir runs/b && ln -sfn b runs/latest", "b")])
def test_the_directory_kept_is_that_of_this_use_s_run(
    script: str, kept: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An earlier use in the same job has left runs/a."""
    (tmp_path / "runs" / "a").mkdir(parents=True)
    (tmp_path / "runs" / "latest").symlink_to("a")
    (tmp_path / "sudo").write_text(f"#!/bin/sh\n{script}\n")
    (tmp_path / "sudo").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    use = Runner(tmp_path, {"experiment": "experiment.yaml"})
    assert bool(use.run("Run the experiment")) == (kept is None)
    directory = use.outputs["run"].get("directory")
    assert directory == (kept and str((tmp_path / "runs" / kept).resolve()))
