"""The records of a controller's decisions, also of one that was started again, and their limits."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from testbed.controller.replanning import decision_log
from testbed.controller.replanning.decision import Decision
from testbed.controller.replanning.decision_log import DecisionLog, DecisionRecord
from testbed.controller.replanning.prediction import RoundPredictor
from testbed.controller.replanning.proposal import Proposal
from testbed.planning import make_policy
from testbed.telemetry.estimate import Estimate
from testbed.telemetry.store import read_records
from tests.controller.plans import triangle

pytestmark = pytest.mark.pure


def test_a_controller_that_is_started_again_keeps_the_views_of_earlier_decisions(tmp_path: Path) -> None:
    view, _, plan = triangle(10)
    proposal = Proposal(view, plan, Decision(True, "the first plan", None, 1.0), RoundPredictor())
    for decisions in (1, 2):
        log = DecisionLog(tmp_path)
        for _ in range(decisions):
            log.record(DecisionRecord(proposal, make_policy("mst"), "period"), None)
        log.close()
    views = [f"views/{number:04d}.json" for number in range(3)]
    assert [decision["view"] for decision in read_records(tmp_path / "decisions.jsonl")] == views
    assert sorted((tmp_path / "views").iterdir()) == [tmp_path / name for name in views]


def test_the_bound_is_that_of_the_view_s_bytes(tmp_path: Path) -> None:
    """A codec changes the bytes, and no capacity."""
    view, _, _ = triangle(10)
    log = DecisionLog(tmp_path)
    whole, quarter = (log.bound(replace(view, model_bytes=size)) for size in (8_000_000, 2_000_000))
    log.close()
    assert whole is not None and quarter == pytest.approx(whole / 4)


def test_the_bound_is_that_of_the_view_s_members(tmp_path: Path) -> None:
    """Two members without a path have as few capacities in use as one alone, which needs no time."""
    view, _, _ = triangle(10)
    apart = replace(view, edges={})
    log = DecisionLog(tmp_path)
    found = [log.bound(one) for one in (apart, apart.among(view.names[:1]), apart)]
    log.close()
    assert found == [None, 0.0, None]


def test_a_decision_says_whether_its_seconds_are_a_measure_of_the_policy_s_own(tmp_path: Path) -> None:
    view, _, plan = triangle(10)
    proposal = Proposal(view, plan, Decision(False, "the policy would change nothing", 1.0, 1.0), RoundPredictor())
    log = DecisionLog(tmp_path)
    for policy, last in (("cpn", None), ("cpn", plan), ("mst", plan)):
        log.record(DecisionRecord(proposal, make_policy(policy), "period", last=last), None)
    log.close()
    decisions = read_records(tmp_path / "decisions.jsonl")
    assert [decision["own_measure"] for decision in decisions] == [False, True, False], "the first plan is predicted"


def test_views_are_recorded_up_to_a_limit_and_decisions_beyond_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    view, _, plan = triangle(10)
    proposal = Proposal(view, plan, Decision(True, "the first plan", None, 1.0), RoundPredictor())
    estimates = {"a->b": Estimate(10e6, 9e6, 11e6, 1.0, 5.0)}
    record = DecisionRecord(proposal, make_policy("mst"), "period", estimates=estimates)
    log = DecisionLog(tmp_path)
    log.record(record, None)
    monkeypatch.setattr(decision_log, "MOST_VIEW_BYTES", (tmp_path / "views/0000.json").stat().st_size + 1)
    log.record(record, None)
    log.close()
    again = DecisionLog(tmp_path)
    again.record(record, None)
    again.close()
    *whole, beyond = read_records(tmp_path / "decisions.jsonl")
    assert [decision["view"] for decision in whole] == ["views/0000.json", "views/0001.json"]
    assert all(decision["estimates"] for decision in whole)
    assert "view" not in beyond and beyond["estimates"] == {} and beyond["why"] == "the first plan"
    assert len(list((tmp_path / "views").iterdir())) == 2
    (said,) = caplog.records
    assert f"{decision_log.MOST_VIEW_BYTES} bytes" in said.getMessage()


def test_estimates_are_recorded_up_to_a_limit_also_by_a_controller_that_is_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(decision_log, "MOST_ESTIMATE_BYTES", 4096)
    estimates = {f"a{number}->b": Estimate(10e6, 9e6, 11e6, 1.0, 5.0) for number in range(8)}
    for _ in range(2):
        log = DecisionLog(tmp_path)
        for at_s in range(20):
            log.estimated(float(at_s), estimates)
        log.close()
    (line, *_) = (tmp_path / "estimates.jsonl").read_bytes().splitlines(keepends=True)
    assert 4096 <= (tmp_path / "estimates.jsonl").stat().st_size < 4096 + 2 * len(line)
    (record,) = caplog.records
    assert "4096 bytes" in record.getMessage()
