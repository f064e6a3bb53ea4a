"""The rounds and decisions of a run in progress: each is requested or read once, and only the newest are kept."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from testbed.controller.client import ControllerError
from testbed.controller.run_records import RunRecords

pytestmark = pytest.mark.pure


class Rounds:
    """A controller with `newest` complete rounds, which refuses while `busy`."""

    def __init__(self, newest: int = 0) -> None:
        self.newest = newest
        self.busy = False
        self.asked: list[int] = []

    def rounds(self, since: int) -> list[dict[str, Any]]:
        self.asked.append(since)
        if self.busy:
            raise ControllerError("busy")
        return [{"round": number} for number in range(since, self.newest + 1)]


def append(file: Path, *lines: str) -> None:
    with file.open("a") as records:
        records.writelines(lines)


def test_each_round_is_requested_once(tmp_path: Path) -> None:
    controller = Rounds(3)
    records = RunRecords(tmp_path, controller)
    assert list(records.until(3)) == list(records.until(3)) == ["1", "2", "3"]
    controller.newest, controller.busy = 5, True
    assert list(records.until(4)) == ["1", "2", "3"]
    controller.busy = False
    assert list(records.until(5)) == ["1", "2", "3", "4", "5"]
    assert controller.asked == [1, 4, 4]


def test_only_the_newest_rounds_are_kept(tmp_path: Path) -> None:
    controller = Rounds(5)
    records = RunRecords(tmp_path, controller, newest=3)
    assert list(records.until(5)) == ["3", "4", "5"]
    controller.newest = 6
    assert list(records.until(6)) == ["4", "5", "6"]
    assert controller.asked == [1, 6]


def test_only_the_newest_decisions_are_kept_with_their_numbers(tmp_path: Path) -> None:
    file, records = tmp_path / "decisions.jsonl", RunRecords(tmp_path, None, newest=2)
    assert records.decisions() == {}
    append(file, *(json.dumps({"why": why, "estimates": {}}) + "\n" for why in "abc"), '{"why": ')
    assert records.decisions() == {"2": {"why": "b"}, "3": {"why": "c"}}
    append(file, '"d"}\n')
    assert records.decisions() == {"3": {"why": "c"}, "4": {"why": "d"}}
