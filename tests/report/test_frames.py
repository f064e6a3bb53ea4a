"""A run's records as frames, and the error where pandas is missing."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from testbed.report import frames
from testbed.report.record import RunRecord
from tests.report.runs import MEMBERS, build_run

pytestmark = pytest.mark.pure


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> RunRecord:
    return RunRecord.read(build_run(tmp_path_factory.mktemp("runs") / "made-up", rounds=40))


def test_rounds_have_their_times_and_the_means_of_metrics(record: RunRecord) -> None:
    found = frames.rounds(record)
    assert list(found.index) == [one.number for one in record.rounds]
    assert list(found["seconds"]) == [one.seconds for one in record.rounds]
    assert (found["finished_s"] - found["entered_s"]).tolist() == pytest.approx(found["seconds"].tolist())
    assert found["loss"].dropna().tolist() == pytest.approx(record.metric("loss")[1])
    assert found["finished_s"].max() <= record.end_s


def test_reports_have_a_row_for_each_member_in_each_round(record: RunRecord) -> None:
    found = frames.reports(record)
    assert len(found) == len(record.reports)
    assert set(found["member"]) == set(MEMBERS)
    assert found["sent_bytes"].sum() == sum(report.sent_bytes for report in record.reports)
    assert (found["finished_s"] >= found["started_s"]).all()
    assert found["started_s"].min() < 60, "since training began"


def test_a_metric_with_the_name_of_a_column_has_a_column_of_its_own(record: RunRecord) -> None:
    """A program's own `session.report({"epoch": 3})` made the tables of its run fail."""
    reports = [
        msgspec.structs.replace(its, metrics={"epoch": 3.0, "run": 4.0, "seconds": its.round}) for its in record.reports
    ]
    named = replace(record, reports=tuple(reports))
    rounds, found = frames.rounds(named), frames.reports(named)
    assert set(rounds["metric_epoch"]) == set(found["metric_epoch"]) == {3.0}
    assert rounds["metric_seconds"].tolist() == list(rounds.index)
    assert rounds["epoch"].tolist() == [one.epoch for one in record.rounds]
    assert found["epoch"].tolist() == [its.epoch for its in record.reports] and "seconds" in found
    both = frames.together({"one": found, "other": frames.reports(named)})
    assert set(both["run"]) == {"one", "other"} and set(both["metric_run"]) == {4.0}


def test_links_and_traffic_are_those_of_the_records(record: RunRecord) -> None:
    states, traffic = frames.links(record), frames.traffic(record)
    one = states[states["link"] == "toronto->tokyo"]
    assert one["rate_bps"].tolist() == [state.rate_bps for state in record.states["toronto->tokyo"]]
    assert len(states) == sum(map(len, record.states.values()))
    last = traffic.groupby("link")["bytes"].last()
    assert last["toronto->tokyo"] == record.samples[-1].bytes["toronto->tokyo"]


def test_events_are_in_the_order_of_time(record: RunRecord) -> None:
    found = frames.events(record)
    assert len(found) == len(record.marks)
    assert found["at_s"].is_monotonic_increasing
    assert set(found["kind"]) <= {"plan", "network", "event"}


def test_a_run_that_recorded_nothing_has_frames_without_rows(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text("{}")
    record = RunRecord.read(tmp_path)
    for table in (frames.rounds, frames.reports, frames.links, frames.traffic, frames.events):
        assert table(record).empty
    assert "seconds" in frames.rounds(record)


def test_without_pandas_it_is_said_how_to_get_it(record: RunRecord, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(frames.PackageMissing, match=r"pip install 'wan-testbed\[tables\]'"):
        frames.rounds(record)
