"""The tests that a change selects."""

from __future__ import annotations

import pytest

from tests.changed import ALWAYS, mirrored

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
