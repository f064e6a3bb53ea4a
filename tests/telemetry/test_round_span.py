"""The definition of a round's length, in the controller, the summary and the page."""

from __future__ import annotations

from pathlib import Path

import pytest

import testbed
from testbed.controller.model.round_log import ReportedRound
from testbed.protocol import Report
from testbed.run.conclusion.summary import rounds_of
from testbed.telemetry.round_span import MEANING, span_of

pytestmark = pytest.mark.pure

PAGE = Path(testbed.__file__).parent / "api/page/index.html"


def test_a_round_runs_from_the_last_entry_to_the_last_end() -> None:
    assert span_of([(1.0, 5.0), (3.0, 4.5)]).seconds == 2.0


def test_the_controller_and_the_summary_say_the_same() -> None:
    reports = {
        name: Report(name, 1, 0, started_s, finished_s, 0.0, 0.0, 0, 0, lost=0, duplicated=0)
        for name, started_s, finished_s in (("a", 1.0, 5.0), ("b", 3.0, 4.5))
    }
    values = [{name: getattr(report, name) for name in Report.__struct_fields__} for report in reports.values()]
    (concluded,) = rounds_of(values, 2)
    assert ReportedRound(1, reports).summary().seconds == concluded.seconds == 2.0


def test_the_page_says_the_definition_in_the_same_words() -> None:
    assert MEANING in " ".join(PAGE.read_text(encoding="utf-8").split())
