"""PyTorch calls what pyproject.toml names as it is imported: a process of its own, in which it is imported anew."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

pytestmark = pytest.mark.unit

ROOT = Path(__file__).parents[1]


def test_a_text_that_names_no_scheme_ends_the_script_with_what_to_write(tmp_path: Path) -> None:
    """As it is installed: pip writes a project's entry points into such a folder."""
    points = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]["torch.backends"]
    installed = tmp_path / "testbed-0.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: testbed\nVersion: 0\n")
    lines = [f"{name} = {value}\n" for name, value in points.items()]
    (installed / "entry_points.txt").write_text("[torch.backends]\n" + "".join(lines))
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}:{ROOT}", "TESTBED_SCHEME": "diloco:every=0"}
    done = subprocess.run(
        [sys.executable, "-c", "import torch"], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert done.stderr == "TESTBED_SCHEME=diloco:every=0: every: is 0; write instead: at least 1\n"
