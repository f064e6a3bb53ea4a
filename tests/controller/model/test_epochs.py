"""Epochs are handed out once, also by a controller that is started again."""

from __future__ import annotations

from pathlib import Path

import pytest

from testbed.controller.model.plan_history import Epochs

pytestmark = pytest.mark.pure


def test_a_restarted_controller_goes_on_counting(tmp_path: Path) -> None:
    first = Epochs(tmp_path / "epochs.json")
    assert not first.resumed and first.newest == 0
    first.begin()
    assert [first.next(), first.next()] == [1, 2]
    again = Epochs(tmp_path / "epochs.json")
    assert again.resumed and again.newest == 2 and again.next() == 3
