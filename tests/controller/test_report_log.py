"""The records of what members report have a limit, which ends who comes to it."""

from __future__ import annotations

from pathlib import Path

import pytest

from testbed.controller import report_log
from testbed.controller.contradiction import Contradiction
from testbed.controller.report_log import ReportLog
from testbed.protocol import Arrived, Renew, Report, Train
from testbed.telemetry.store import read_records

pytestmark = pytest.mark.unit


def report(member: str, number: int) -> Report:
    return Report(member, number, 0, 1.0, 2.0, 0.1, 0.0, 10, 10, 0, 0, metrics={"loss": float("nan")})


def test_each_member_has_its_share_of_the_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report_log, "LEAST_BYTES", 4096)
    monkeypatch.setattr(report_log, "ROUND_BYTES", 1)
    log = ReportLog(tmp_path, rounds=10)
    with pytest.raises(Contradiction, match="fill the 4096 bytes"):
        for number in range(1000):
            log.add(report("a", number))
            log.add(Arrived("a", {"b": (Train(1.0, 0.1, 65536),)}))
    log.add(report("b", 1))
    log.add(Renew("a"))
    log.close()
    written = list(read_records(tmp_path / "rounds.jsonl"))
    assert written[-1]["member"] == "b" and written[-1]["metrics"] == {"loss": None}
    size = sum((tmp_path / name).stat().st_size for name in ("rounds.jsonl", "arrivals.jsonl"))
    assert size < 4096 + 2 * 512
