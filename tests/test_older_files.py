"""Files of earlier versions are read: run directories, and what a user writes. `tests/older/` has them by date.

The simulated runs were made by `testbed simulate` of that day. The departure of the elastic run and the violation of
the gossip run were added in the form that runs in containers recorded then. The run of the first day is the one that
its tests made. The plan of that day was made from the view of 2026-11-25 by the last commit that wrote version 2.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from testbed.cli import app
from testbed.errors import BAD_INPUT
from testbed.plan import PLAIN_CODEC, PLAN_VERSION, Plan
from testbed.report.page import write_page
from testbed.report.record import RunRecord
from testbed.report.recording import RecordedRun
from testbed.run.directory import past_runs
from testbed.telemetry.store import FORMAT, in_newest_format

OLDER = Path(__file__).parent / "older"
RUNS = sorted(file.parent.name for file in OLDER.glob("*/manifest.json"))
FILES = sorted(file.name for file in (OLDER / "files").iterdir())


@pytest.mark.local
@pytest.mark.parametrize("name", RUNS)
def test_an_older_run_has_a_page_and_can_be_played(name: str, tmp_path: Path) -> None:
    record = RunRecord.read(run := copied(OLDER / name, tmp_path / name))
    assert record.finished and record.rounds
    assert not record.gaps
    assert "</html>" in write_page(record).read_text()
    if "spec" in record.manifest:
        assert json.loads(RecordedRun(run).recording())["rounds"] or "gossip" in name


def copied(run: Path, target: Path) -> Path:
    for file in (file for file in run.rglob("*") if file.is_file()):
        (copy := target / file.relative_to(run)).parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(file.read_bytes())
    return target


@pytest.mark.pure
def test_older_runs_are_listed() -> None:
    assert {run.path.name: run.state for run in past_runs(OLDER)} == {
        "2026-11-21-made": "trusted",
        **dict.fromkeys(RUNS[1:], "simulated"),
    }


@pytest.mark.pure
def test_a_departure_of_version_1_counts() -> None:
    record = RunRecord.read(OLDER / "2026-11-25-elastic")
    (event,) = record.manifest["membership_events"]
    assert (event["kind"], event["member"], "passages" in record.manifest) == ("left", "lima-w1", False)
    assert len(record.rounds) == 4, "rounds of those that are left are whole"


@pytest.mark.pure
def test_a_violation_of_version_1_is_read() -> None:
    gap = RunRecord.read(OLDER / "2026-11-25-gossip").summary["sync"]["gap"]
    assert "breaches" not in gap and gap["violations"][0].startswith("quito-w0 is 6")
    final = in_newest_format(json.loads((OLDER / "2026-11-25-gossip" / "final.json").read_text()))
    assert final["membership_events"] == [] and final["gaps"]["violations"] == gap["violations"]


@pytest.mark.pure
def test_a_record_of_this_version_stays() -> None:
    record = {"format": FORMAT, "passages": 1, "sync": {"gap": {"breaches": []}}}
    assert in_newest_format(record) == record
    assert in_newest_format({"sync": {"gap": None}}) == {"sync": {"gap": None}}


@pytest.mark.local
@pytest.mark.parametrize("name", FILES)
def test_an_older_file_is_read(name: str) -> None:
    result = CliRunner().invoke(app, ["check", str(OLDER / "files" / name)])
    assert (result.exit_code, result.stderr) == (0, "")
    assert name in result.stdout


@pytest.mark.pure
def test_an_older_decision_is_replayed() -> None:
    view = OLDER / "files" / "2026-11-25-view.json"
    last = OLDER / "2026-11-25-elastic" / "plans" / "0000.json"
    words = ["plan", "--policy", "mst", "--view", str(view), "--last", str(last), "--json"]
    made = json.loads(CliRunner().invoke(app, words).stdout)["plan"]
    assert made["trees"] == json.loads(last.read_text())["trees"]


@pytest.mark.pure
def test_a_plan_of_version_1_is_read() -> None:
    written = json.loads((OLDER / "2026-11-21-made" / "plans" / "0000.json").read_text())
    plan = Plan.from_json(written)
    (tree,) = plan.to_json()["trees"]
    assert (tree, plan.members) == ({**written["trees"][0], "keys": []}, tuple(written["members"]))
    assert (plan.codec, plan.auxiliary, plan.groups, plan.period, plan.steps) == (PLAIN_CODEC, (), (), 1, {})


@pytest.mark.pure
def test_a_plan_of_version_2_is_read() -> None:
    written = json.loads((OLDER / "files" / "2026-11-21-plan.json").read_text())
    assert (written["version"], "steps" in written) == (2, False)
    plan = Plan.from_json(written)
    assert plan.to_json() == {**written, "version": PLAN_VERSION, "steps": {}}
    assert (len(plan.trees), len(plan.groups), len(plan.auxiliary), plan.period) == (3, 2, 6, 4)


@pytest.mark.pure
def test_a_plan_of_an_unreadable_version_is_named(tmp_path: Path) -> None:
    written = json.loads((OLDER / "files" / "2026-11-25-plan.json").read_text())
    (newer := tmp_path / "plan.json").write_text(json.dumps({**written, "version": PLAN_VERSION + 1}))
    result = CliRunner().invoke(app, ["check", str(newer)])
    assert result.exit_code == BAD_INPUT
    said = " ".join(result.stderr.split())
    assert f"version is {PLAN_VERSION + 1}" in said and "`testbed plan`" in said


@pytest.mark.pure
def test_the_files_are_small() -> None:
    assert sum(file.stat().st_size for file in OLDER.rglob("*") if file.is_file()) < 100_000
