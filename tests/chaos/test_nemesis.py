"""A sample of the nemesis: a planted bug is found in a real run, and a fault is named by the run that ends of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.case import Case
from tests.chaos.checker import check
from tests.chaos.nemesis import execute
from tests.chaos.planted import BUGS, Bug

pytestmark = [pytest.mark.privileged, pytest.mark.timeout(240)]


def test_a_planted_bug_is_found(tmp_path: Path) -> None:
    assert BUGS["counted-twice"] in check(execute(Case.plain(1), tmp_path, Bug("counted-twice", 1)))


def test_a_member_dies_and_the_run_says_so(tmp_path: Path) -> None:
    history = execute(Case.plain(1, dies_in=3), tmp_path)
    assert history.injected and not history.finished
    assert check(history) == {}
