"""A sample of the nemesis: a real run, in which a member is killed and the error that it leaves is swallowed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.case import Case
from tests.chaos.checker import check
from tests.chaos.nemesis import execute
from tests.chaos.planted import BUGS, NEED_A_DEATH, Bug

pytestmark = pytest.mark.system


def test_a_bug_that_shows_when_a_member_dies_is_found(tmp_path: Path) -> None:
    name = min(NEED_A_DEATH)
    bug = Bug(name, 1)
    for number in range(3):  # its 30 rounds take 4 s: a busy host may let all pass before the nemesis looks
        (folder := tmp_path / str(number)).mkdir()
        history = execute(Case.plain(1, dies_in=bug.round), folder, bug)
        if cut_short := history.injected and (history.case.rounds, "c-w0") not in history.results:
            break
    assert cut_short
    assert {member for _, member in history.results} == set(history.case.members), "its members keep no records"
    assert BUGS[name] in check(history)
