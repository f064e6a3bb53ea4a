"""The records of a run in progress: only so much of a member is written, and each record is read once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from testbed.controller import run_records
from testbed.controller.client import ControllerError
from testbed.controller.run_records import ReportLog, RunRecords, spent_in
from testbed.protocol import Arrived, Renew, Report, Train
from testbed.simulation.event_queue import SimulatedClocks
from testbed.telemetry.store import read_records

pytestmark = pytest.mark.pure

TRAINS = {"b": (Train(1.0, 0.1, 65536),)}


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


def test_a_pause_up_to_the_declared_time_counts_as_computing() -> None:
    report = {"started_s": 10.0, "finished_s": 14.0, "compute_s": 0.5, "paced_s": 0.25, "waited": {"b": 1.0, "c": 3.0}}
    assert spent_in(report) == {"compute_s": 0.75, "wait_s": 3.0, "send_s": 1.0}


def test_an_iteration_of_a_member_that_gossips_contains_its_steps() -> None:
    report = {"started_s": 10.0, "finished_s": 14.0, "compute_s": 0.5, "paced_s": 0.5, "waited": {"b": 0.5, "c": 1.0}}
    assert spent_in(report, gossips=True) == {"compute_s": 1.0, "wait_s": 1.5, "send_s": 1.5}
    assert spent_in({**report, "paced_s": 4.0}, gossips=True) == {"compute_s": 4.5, "wait_s": 0.0, "send_s": 0.0}


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


def test_a_record_that_a_crash_cut_short_is_left_out(tmp_path: Path) -> None:
    records = RunRecords(tmp_path, None)
    append(tmp_path / "decisions.jsonl", '{"why": "a"}\n', '{"why": "b', "\n", '{"why": "c"}\n')
    assert records.decisions() == {"1": {"why": "a"}, "2": {"why": "c"}}


def report(member: str, number: int) -> Report:
    metrics = {"loss": float("nan")}
    return Report(member, number, 0, 1.0, 2.0, 0.1, 0.0, 10, 10, 0, 0, metrics=metrics, arrivals=TRAINS)


def test_each_member_has_its_share_of_the_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(run_records, "LEAST_BYTES", 8192)
    monkeypatch.setattr(run_records, "ROUND_BYTES", 1)
    log = ReportLog(tmp_path, rounds=10, clocks=SimulatedClocks(0.0))
    for number in range(1000):
        log.add(report("a", number))
        log.add(Arrived("a", TRAINS))
    log.add(report("b", 1))
    log.add(Renew("a"))
    log.close()
    *of_a, of_b = read_records(tmp_path / "rounds.jsonl")
    assert of_b["member"] == "b" and of_b["metrics"] == {"loss": None}
    assert [one["round"] for one in of_a] == list(range(len(of_a)))
    whole = [one for one in of_a if "arrivals" in one]
    assert of_a[: len(whole)] == whole and 2 < len(whole) < len(of_a) - 2
    assert len(list(read_records(tmp_path / "arrivals.jsonl"))) in (len(whole), len(whole) - 1)
    size = sum((tmp_path / name).stat().st_size for name in ("rounds.jsonl", "arrivals.jsonl"))
    assert size < 8192 + 2 * 512
    (record,) = caplog.records
    assert record.getMessage().startswith("a ") and "8192 bytes" in record.getMessage()


def test_a_limit_of_the_records_may_be_given(tmp_path: Path) -> None:
    log = ReportLog(tmp_path, rounds=1_000_000_000, clocks=SimulatedClocks(0.0), most_bytes=4096)
    for number in range(100):
        log.add(report("a", number))
    log.close()
    assert 4096 <= (tmp_path / "rounds.jsonl").stat().st_size < 4096 + 512


def test_of_many_unread_reports_only_the_newest_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = {"started_s": 10.0, "finished_s": 14.0, "compute_s": 1.0, "paced_s": 0.0}
    line = {member: json.dumps({"member": member, **seconds}) + "\n" for member in "abc"}
    for more_bytes in (0, 1, len(line["a"]) - 1):
        monkeypatch.setattr(run_records, "BEHIND_BYTES", 2 * len(line["a"]) + more_bytes)
        run = tmp_path / str(more_bytes)
        run.mkdir()
        append(run / "rounds.jsonl", *(line["a"] for _ in range(10)), line["b"], line["c"])
        records = RunRecords(run, None)
        assert records.spent().keys() == {"b", "c"}
        append(run / "rounds.jsonl", line["a"][:9])
        assert records.spent().keys() == {"b", "c"}
        append(run / "rounds.jsonl", line["a"][9:])
        assert records.spent().keys() == {"a", "b", "c"}
