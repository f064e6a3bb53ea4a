"""The records of what members report have a limit: what is beyond is not written, and nobody is lost for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from testbed.controller import report_log
from testbed.controller.report_log import ReportLog
from testbed.protocol import Arrived, Renew, Report, Train
from testbed.telemetry.store import read_records

pytestmark = pytest.mark.local

TRAINS = {"b": (Train(1.0, 0.1, 65536),)}


def report(member: str, number: int) -> Report:
    metrics = {"loss": float("nan")}
    return Report(member, number, 0, 1.0, 2.0, 0.1, 0.0, 10, 10, 0, 0, metrics=metrics, arrivals=TRAINS)


def test_each_member_has_its_share_of_the_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(report_log, "LEAST_BYTES", 8192)
    monkeypatch.setattr(report_log, "ROUND_BYTES", 1)
    log = ReportLog(tmp_path, rounds=10)
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
