"""The campaign in small: a run that is cut off at any write can be read, and a full disk is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.report.runs import build_run
from tests.run.crashes import campaign


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_run(tmp_path_factory.mktemp("source") / "run", rounds=40)


@pytest.mark.local
def test_runs_that_are_killed_while_they_write_are_read(source: Path, tmp_path: Path) -> None:
    assert campaign(source, tmp_path, count=3, full=0, seed=1).total() == 3


@pytest.mark.system
def test_runs_whose_disk_gets_full_are_read(source: Path, tmp_path: Path) -> None:
    assert campaign(source, tmp_path, count=0, full=3, seed=1) == {"the disk was full": 3}
