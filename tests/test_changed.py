"""The tests that a change selects."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.changed import ALWAYS, main, mirrored

pytestmark = pytest.mark.pure


@pytest.mark.parametrize(
    ("changed", "tests"),
    [
        ("testbed/spec/load.py", "tests/spec/test_load.py"),
        ("testbed/sync/gossip/inbox.py", "tests/sync/gossip"),
        ("testbed/schemes/sgp.py", "tests/schemes"),
        ("testbed/plan.py", "tests/test_plan.py"),
        ("testbed/planning/events.c", "tests/planning"),
        ("benchmarks/support/fidelity/cells.py", "tests/benchmarks/support/fidelity/test_cells.py"),
        ("tests/spec/test_load.py", "tests/spec/test_load.py"),
        ("tests/spec/files.py", "tests/spec"),
        ("tests/changed.py", "tests/test_changed.py"),
    ],
)
def test_a_file_s_tests_are_those_that_mirror_it(changed: str, tests: str) -> None:
    assert mirrored([changed]) == sorted({*ALWAYS, tests})


def test_where_a_folder_is_gone_it_is_the_one_above() -> None:
    assert mirrored(["tests/sync/gone/files.py"]) == sorted({*ALWAYS, "tests/sync"})


def test_what_is_no_source_asks_for_none() -> None:
    assert mirrored(["README.md", "topologies/quickstart.yaml", "tests/spec/test_gone.py"]) == sorted(ALWAYS)


def test_a_commit_that_git_does_not_know_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(command: list[str], **_: object) -> None:
        raise subprocess.CalledProcessError(128, command, stderr=f"fatal: bad revision '{command[-2]}'\n")

    monkeypatch.setattr(subprocess, "run", refuse)
    monkeypatch.setattr(sys, "argv", ["changed", "nowhere"])
    assert main() == 2
    told = capsys.readouterr()
    assert not told.out and "nowhere" in told.err and "SINCE" in told.err
