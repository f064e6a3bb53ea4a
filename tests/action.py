"""`python -m tests.action`: run the steps of action.yml as a runner would, without those that use other actions.

The smoke experiment makes a baseline, and then passes beside it, unless this machine is busy with other work.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[1]
ACTION: dict[str, Any] = yaml.safe_load((ROOT / "action.yml").read_text())

#: `${{ inputs.experiment }}`, `${{ steps.run.outputs.directory }}`
EXPRESSION = re.compile(r"\$\{\{ (?:inputs|steps\.(\w+)\.outputs)\.(\w+) \}\}")

#: As GitHub's documentation has it for `shell: bash`.
SHELL = ("bash", "--noprofile", "--norc", "-eo", "pipefail")


@dataclass
class Runner:
    """Runs steps in `folder`, a checkout of the action's user."""

    folder: Path
    inputs: Mapping[str, str]
    outputs: dict[str, dict[str, str]] = field(default_factory=dict)
    summary: str = ""

    def run(self, name: str) -> int:
        """Run the step of this name, and return its exit code."""
        step = next(step for step in ACTION["runs"]["steps"] if step["name"] == name)
        with TemporaryDirectory() as own:
            files = {key: Path(own) / key for key in ("GITHUB_OUTPUT", "GITHUB_STEP_SUMMARY")}
            for file in files.values():
                file.touch()
            told = {key: self._filled(value) for key, value in step.get("env", {}).items()}
            paths = {key: str(file) for key, file in files.items()}
            done = subprocess.run(
                [*SHELL, "-c", step["run"]],
                cwd=self.folder,
                env={**os.environ, **paths, **told, "GITHUB_ACTION_PATH": str(ROOT), "PATH": self._path(Path(own))},
            )
            said = (line.partition("=") for line in files["GITHUB_OUTPUT"].read_text().splitlines())
            self.outputs[step.get("id", name)] = {key: value for key, _, value in said}
            self.summary += files["GITHUB_STEP_SUMMARY"].read_text()
        return done.returncode

    def _filled(self, value: str) -> str:
        defaults = {name: str(each.get("default", "")) for name, each in ACTION["inputs"].items()}
        known = {**defaults, **self.inputs}
        return EXPRESSION.sub(lambda m: self.outputs.get(m[1], {}).get(m[2], "") if m[1] else known[m[2]], value)

    @staticmethod
    def _path(folder: Path) -> str:
        """Return a PATH that has a `sudo` for root, where none is installed."""
        (folder / "sudo").write_text('#!/bin/sh\nexec "$@"\n')
        (folder / "sudo").chmod(0o755)
        return f"{os.environ['PATH']}:{folder}"


def main() -> int:
    """Run the steps. Returns 1 if one failed."""
    with TemporaryDirectory() as folder:
        first = Runner(Path(folder), {"experiment": str(ROOT / "experiments/smoke.yaml"), "set": "train.rounds=30\n"})
        for name in ("Set up", "Run the experiment", "Judge it"):
            if first.run(name):
                return 1
        baseline = f"{first.outputs['run']['directory']}/summary.json"
        again = Runner(first.folder, {**first.inputs, "baseline": baseline, "tolerance": "50%"})
        return int(any(again.run(name) for name in ("Run the experiment", "Judge it")))


if __name__ == "__main__":
    sys.exit(main())
