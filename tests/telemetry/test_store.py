"""Record files: complete after crashes and on full disks."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from testbed.telemetry.store import Records, read_json, read_records, write_json


@pytest.mark.pure
def test_records_come_back_in_order_and_are_there_before_the_file_is_closed(tmp_path: Path) -> None:
    with closing(Records(tmp_path / "deep/r.jsonl")) as records:
        for i in range(3):
            records.append({"i": i})
        assert [record["i"] for record in read_records(tmp_path / "deep/r.jsonl")] == [0, 1, 2]


@pytest.mark.pure
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cut=st.integers(0, 60))
def test_a_file_cut_anywhere_loses_at_most_its_last_record_and_can_be_continued(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "r.jsonl"
    path.unlink(missing_ok=True)
    with closing(Records(path)) as records:
        for i in range(5):
            records.append({"i": i, "x": "y"})
    whole = path.read_bytes()
    path.write_bytes(whole[: max(len(whole) - cut, 0)])
    before = [record["i"] for record in read_records(path)]
    assert before == list(range(len(before))) and len(before) >= 5 - cut // 16 - 1
    with closing(Records(path)) as records:
        records.append({"i": 99})
    assert [record["i"] for record in read_records(path)] == [*before, 99]


@pytest.mark.pure
def test_no_file_has_no_records(tmp_path: Path) -> None:
    assert list(read_records(tmp_path / "none")) == []


@pytest.mark.pure
def test_what_json_cannot_hold_becomes_null(tmp_path: Path) -> None:
    with closing(Records(tmp_path / "r")) as records:
        records.append({"loss": float("nan"), "deep": [{"x": float("inf")}], "tuple": (1.5,)})
    assert list(read_records(tmp_path / "r")) == [{"loss": None, "deep": [{"x": None}], "tuple": [1.5]}]


@pytest.mark.pure
def test_a_json_file_is_replaced_as_a_whole(tmp_path: Path) -> None:
    write_json(tmp_path / "d/f.json", {"a": 1})
    write_json(tmp_path / "d/f.json", {"a": 2})
    assert [path.name for path in (tmp_path / "d").iterdir()] == ["f.json"]
    assert '"a": 2' in (tmp_path / "d/f.json").read_text()


@pytest.mark.local
def test_a_line_that_finds_no_room_leaves_none_of_itself(tmp_path: Path) -> None:
    """The process may write files of 100 bytes only: like a full disk, this takes a part of a line."""
    program = (
        "import resource, signal, sys; from pathlib import Path; from testbed.telemetry.store import Records\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))\n"
        "records = Records(Path(sys.argv[1]))\n"
        "records.append({'i': 0})\n"
        "try:\n"
        "    records.append({'i': 'x' * 200})\n"
        "except OSError as error:\n"
        "    print(error)\n"
        "records.append({'i': 1})\n"
        "records.close()\n"
    )
    path, root = tmp_path / "r.jsonl", Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", program, path],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": str(root)},
    )
    assert str(path) in done.stdout
    assert path.read_text() == '{"i":0}\n{"i":1}\n'


@pytest.mark.pure
def test_a_line_cut_short_is_left_out_and_the_log_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "r.jsonl"
    path.write_text('{"i": 0}\n{"i": 1')
    assert list(read_records(path)) == [{"i": 0}]
    assert f"{path}: line 2" in caplog.text


@pytest.mark.pure
def test_brackets_thousands_deep_are_no_json(tmp_path: Path) -> None:
    deep = '{"i": ' + "[" * 100_000
    (tmp_path / "r.json").write_text(deep)
    with pytest.raises(ValueError):
        read_json(tmp_path / "r.json")
    (tmp_path / "r.jsonl").write_text(f'{{"i": 0}}\n{deep}\n{{"i": 1}}\n')
    assert [record["i"] for record in read_records(tmp_path / "r.jsonl")] == [0, 1]
