from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from testbed.telemetry.store import Records, read_records, write_json

pytestmark = pytest.mark.unit


def test_records_come_back_in_order_and_are_there_before_the_file_is_closed(tmp_path: Path) -> None:
    with Records(tmp_path / "deep/r.jsonl") as records:
        for i in range(3):
            records.append({"i": i})
        assert [record["i"] for record in read_records(tmp_path / "deep/r.jsonl")] == [0, 1, 2]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cut=st.integers(0, 60))
def test_a_file_cut_anywhere_loses_at_most_its_last_record_and_can_be_continued(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "r.jsonl"
    path.unlink(missing_ok=True)
    with Records(path) as records:
        for i in range(5):
            records.append({"i": i, "x": "y"})
    whole = path.read_bytes()
    path.write_bytes(whole[: max(len(whole) - cut, 0)])
    before = [record["i"] for record in read_records(path)]
    assert before == list(range(len(before))) and len(before) >= 5 - cut // 16 - 1
    with Records(path) as records:
        records.append({"i": 99})
    assert [record["i"] for record in read_records(path)] == [*before, 99]


def test_no_file_has_no_records(tmp_path: Path) -> None:
    assert list(read_records(tmp_path / "none")) == []


def test_what_json_cannot_hold_becomes_null(tmp_path: Path) -> None:
    with Records(tmp_path / "r") as records:
        records.append({"loss": float("nan"), "deep": [{"x": float("inf")}], "tuple": (1.5,)})
    assert list(read_records(tmp_path / "r")) == [{"loss": None, "deep": [{"x": None}], "tuple": [1.5]}]


def test_a_json_file_is_replaced_as_a_whole(tmp_path: Path) -> None:
    write_json(tmp_path / "d/f.json", {"a": 1})
    write_json(tmp_path / "d/f.json", {"a": 2})
    assert [path.name for path in (tmp_path / "d").iterdir()] == ["f.json"]
    assert '"a": 2' in (tmp_path / "d/f.json").read_text()
