"""Records of runs, whole and damaged."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from testbed.errors import BAD_INPUT
from testbed.report.figures.training import draw_training
from testbed.report.opening import key_figures
from testbed.report.record import RunRecord, site_of
from testbed.report.recording import recording_of
from testbed.report.run_files import NotARun
from testbed.run.conclusion.baseline import NoSummary, read_summary
from testbed.run.execute import Executed
from testbed.run.sweep.comparison import figures_of
from tests.report.runs import DOWN_S, DROP_S, MEMBERS, NETWORK_S, UP_S, ZERO_S, build_run, without_plans

pytestmark = pytest.mark.pure


def test_a_whole_run_is_read_without_gaps(tmp_path: Path) -> None:
    record = RunRecord.read(build_run(tmp_path / "run"))
    assert record.gaps == ()
    assert record.finished
    assert record.members == MEMBERS
    assert [round_.number for round_ in record.rounds] == list(range(160))
    assert list(record.epochs) == list(record.plans) == [0, 1, 2, 3]
    assert record.metric("accuracy")[1][-1] > record.metric("accuracy")[1][0]


def test_times_count_from_the_start_of_training(tmp_path: Path) -> None:
    record = RunRecord.read(build_run(tmp_path / "run"))
    assert record.states["toronto->tokyo"][0].at_s == -2.0
    assert next(state.at_s for state in record.states["toronto->tokyo"] if not state.up) == DOWN_S
    assert record.states["toronto->london"][-1].at_s == NETWORK_S
    assert not record.states["toronto->london"][-1].there
    assert 0 < record.since(record.rounds[0].entered_s) < 1


def test_marks_are_the_same_with_and_without_a_summary(tmp_path: Path) -> None:
    run = build_run(tmp_path / "run")
    whole = RunRecord.read(run).marks
    (run / "summary.json").unlink()
    crashed = RunRecord.read(run)
    assert not crashed.finished
    assert [mark.label for mark in crashed.marks] == [mark.label for mark in whole]
    assert [mark.at_s for mark in crashed.marks] == pytest.approx([mark.at_s for mark in whole], abs=0.2)
    events = [mark for mark in whole if mark.kind == "event"]
    assert {mark.at_s for mark in events if mark.short in ("down", "up")} == {DOWN_S, UP_S}
    drop = next(mark for mark in events if mark.label == "london-washington drop")
    assert drop.at_s == pytest.approx(DROP_S, abs=1.5)
    assert [mark.at_s for mark in whole if mark.kind == "network"] == [NETWORK_S]


def test_a_program_that_printed_no_number_has_no_curve(tmp_path: Path) -> None:
    run = build_run(tmp_path / "run", rounds=3)
    printed = [("a", 1.0), ("a", 0.5), ("b", None), ("b", None)]
    lines = [
        json.dumps({"at_s": ZERO_S + at, "program": program, "values": {"loss": value}})
        for at, (program, value) in enumerate(printed)
    ]
    (run / "curves.jsonl").write_text("\n".join(lines) + "\n")
    record = RunRecord.read(run)
    assert record.curves["loss"].keys() == {"a"}
    assert draw_training(record) is not None


def test_a_half_written_last_line_is_passed_over_and_said(tmp_path: Path) -> None:
    run = build_run(tmp_path / "run", rounds=20)
    rounds = run / "rounds.jsonl"
    rounds.write_bytes(rounds.read_bytes()[:-40])
    record = RunRecord.read(run)
    assert len(record.reports) == 20 * len(MEMBERS) - 1
    assert len(record.rounds) == 19, "a round that one member did not report is not complete"
    assert record.gaps == ("rounds.jsonl: 1 line cut short or damaged, left out",)


def test_the_rounds_of_a_run_that_lost_a_member_and_was_cut_off_are_counted(tmp_path: Path) -> None:
    run = build_run(tmp_path / "run", rounds=20)
    lines = [json.loads(line) for line in (run / "rounds.jsonl").read_text().splitlines()]
    left = [line for line in lines if line["round"] < 10 or line["member"] != MEMBERS[-1]]
    (run / "rounds.jsonl").write_text("".join(json.dumps(line) + "\n" for line in left))
    assert len(RunRecord.read(run).rounds) == 10
    with (run / "events.jsonl").open("a") as events:
        at_s = lines[-1]["finished_s"]
        events.write(json.dumps({"at_s": at_s, "kind": "left", "target": MEMBERS[-1]}) + "\n")
    manifest = json.loads((run / "manifest.json").read_text())
    manifest.pop("membership_events", None)
    (run / "manifest.json").write_text(json.dumps(manifest))
    assert len(RunRecord.read(run).rounds) == 20


@pytest.mark.parametrize("name", ["summary.json", "rounds.jsonl", "links.jsonl", "traffic.jsonl", "plans"])
def test_what_a_crash_left_out_is_said(tmp_path: Path, name: str) -> None:
    run = build_run(tmp_path / "run", rounds=20)
    if name == "plans":
        for plan in (run / name).iterdir():
            plan.unlink()
    else:
        (run / name).unlink()
    assert any(name in gap for gap in RunRecord.read(run).gaps)


def test_a_run_whose_members_gossip_lacks_no_plan(tmp_path: Path) -> None:
    record = RunRecord.read(without_plans(build_run(tmp_path / "run", rounds=20)))
    assert record.plans == {} and record.gaps == ()
    assert set(record.members) == set(MEMBERS) and len(record.rounds) == 20


def test_an_iteration_of_members_that_gossip_contains_its_steps(tmp_path: Path) -> None:
    """Steps of 60 to 120 ms counted twice: as computing and pacing, and as synchronizing."""
    run = build_run(tmp_path / "run", rounds=20)
    whole = RunRecord.read(run)
    assert [whole.synchronizing_s(its) for its in whole.reports] == [r.finished_s - r.started_s for r in whole.reports]
    record = RunRecord.read(without_plans(run))
    for its in record.reports:
        spent = record.synchronizing_s(its) + its.compute_s + its.paced_s
        assert spent == pytest.approx(its.finished_s - its.started_s)


def test_a_run_that_follows_no_policy_has_the_name_of_its_scheme(tmp_path: Path) -> None:
    """Runs of several gossip schemes were all of an `unknown policy` in a comparison."""
    run = without_plans(build_run(tmp_path / "run", rounds=9))
    summary = json.loads((run / "summary.json").read_text())
    for strategy, name in (("hop", "hop"), (None, "no policy")):
        summary["sync"] |= {"policy": None, "strategy": strategy}
        (run / "summary.json").write_text(json.dumps(summary))
        assert RunRecord.read(run).policy == name


def test_an_invalid_plan_is_reported(tmp_path: Path) -> None:
    run = build_run(tmp_path / "run", rounds=20)
    (run / "plans/0000.json").write_text('{"version": 1, "epo')
    (run / "plans/0001.json").write_text('{"version": 1, "epoch": 1}')
    record = RunRecord.read(run)
    assert record.plans == {}
    assert [gap.split(":")[0] for gap in record.gaps] == ["plans/0000.json", "plans/0001.json", "plans/ holds no plan"]


def test_metrics_that_were_not_numbers_are_left_out(tmp_path: Path) -> None:
    run = build_run(tmp_path / "run", rounds=20)
    lines = [json.loads(line) for line in (run / "rounds.jsonl").read_text().splitlines()]
    for line in lines:
        if line["round"] == 7:
            line["metrics"]["loss"] = None  # how records hold the NaN of a training that diverged
    (run / "rounds.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    record = RunRecord.read(run)
    assert len(record.rounds) == 20
    assert len(record.metric("loss")[1]) == 19


def test_a_figure_that_no_program_gave_twice_is_no_curve(tmp_path: Path) -> None:
    run = build_run(tmp_path / "run", rounds=20)
    gave = [("a", {"loss": 1.0, "hidden": 64}), ("b", {"hidden": 64}), ("a", {"loss": 0.5})]
    lines = [{"at_s": 10.0 + n, "program": name, "values": values} for n, (name, values) in enumerate(gave)]
    (run / "curves.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    curves = RunRecord.read(run).curves
    assert {name: {who: values for who, (_, values) in each.items()} for name, each in curves.items()} == {
        "loss": {"a": [1.0, 0.5]}
    }


def test_figures_that_were_logged_are_in_the_order_of_their_times(tmp_path: Path) -> None:
    run = build_run(tmp_path / "run", rounds=20)
    lines = [{"at_s": at_s, "program": "a", "values": {"loss": at_s}} for at_s in (11.0, 13.0, 10.0, 12.0)]
    (run / "curves.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert RunRecord.read(run).curves["loss"]["a"][1] == [10.0, 11.0, 12.0, 13.0]


def test_a_folder_that_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NotARun) as caught:
        RunRecord.read(tmp_path)
    assert (caught.value.rule, caught.value.file) == ("no-manifest", tmp_path)
    with pytest.raises(NotARun) as caught:
        RunRecord.read(tmp_path / "absent")
    assert (caught.value.rule, caught.value.file) == ("missing", tmp_path / "absent")
    (tmp_path / "manifest.json").write_text("{")
    with pytest.raises(NotARun) as caught:
        RunRecord.read(tmp_path)
    assert (caught.value.rule, caught.value.file) == ("json", tmp_path / "manifest.json")


def test_files_that_were_being_written_are_told_and_a_users_own_are_not(tmp_path: Path) -> None:
    run = build_run(tmp_path / "run", rounds=20)
    (run / "out").mkdir()
    for name in ("summary.json.4711-0a1b2c3d.new", "out/weights.new", "out/a.b.new"):
        (run / name).touch()
    assert RunRecord.read(run).gaps == ("summary.json was being written",)


def test_brackets_thousands_deep_are_a_damaged_file(tmp_path: Path) -> None:
    run, deep = build_run(tmp_path / "run", rounds=20), '{"deep": ' + "[" * 100_000
    for name in ("summary.json", "plans/0001.json", "view.json"):
        (run / name).write_text(deep)
    with (run / "rounds.jsonl").open("a") as rounds:
        rounds.write(f"{deep}\n")
    record = RunRecord.read(run)
    assert [gap.split()[0] for gap in record.gaps] == ["rounds.jsonl:", "summary.json", "plans/0001.json:"]
    assert len(record.rounds) == 20 and record.view("view.json") is None
    (run / "manifest.json").write_text(deep)
    with pytest.raises(NotARun) as caught:
        RunRecord.read(run)
    assert (caught.value.rule, caught.value.file) == ("json", run / "manifest.json")


def test_lines_with_wrong_fields_are_left_out_and_said(tmp_path: Path) -> None:
    run, names = build_run(tmp_path / "run", rounds=20), ("rounds", "decisions", "links", "traffic", "events")
    before = RunRecord.read(run)
    line = {"at_s": "noon", "kind": "up", "target": "a-b", "link": "a->b", "bytes": {}, "member": ["a-w0"], "round": 1}
    for name in names:
        with (run / f"{name}.jsonl").open("a") as lines:
            lines.write(json.dumps(line) + "\n")
    record = RunRecord.read(run)
    assert {gap.split(":")[0] for gap in record.gaps} == {f"{name}.jsonl" for name in names}
    for part in ("reports", "decisions", "states", "samples", "events"):
        assert getattr(record, part) == getattr(before, part)


@pytest.mark.parametrize(
    "wrong",
    [
        {"spec": []},
        {"spec": {"train": 3}},
        {"training_started_s": "noon"},
        {"started_s": 1e308},
        {"inputs": {"a.yaml": 1}},
        {"host": "x"},
        {"git_commit": 3},
    ],
)
def test_a_manifest_with_wrong_fields_is_refused(tmp_path: Path, wrong: dict[str, object]) -> None:
    run = build_run(tmp_path / "run", rounds=3)
    manifest = json.loads((run / "manifest.json").read_text())
    (run / "manifest.json").write_text(json.dumps(manifest | wrong))
    for reads in (RunRecord.read, recording_of):
        with pytest.raises(NotARun) as caught:
            reads(run)
        assert (caught.value.rule, caught.value.file) == ("json", run / "manifest.json")


WRONG_SUMMARIES: list[object] = [
    [],
    {"reasons": 3},
    {"training": {"rounds": "many", "wall_seconds": 1.0}},
    {"sync": {"seconds_per_round": {"p50": "fast"}}},
    {"swaps": [3]},
    {"events": [{"kind": "up"}]},
    {"links": {"a->b": {"rate_error_pct": []}}},
]


@pytest.mark.parametrize("wrong", WRONG_SUMMARIES, ids=json.dumps)
def test_a_summary_with_wrong_fields_is_refused_by_all_that_read_it(tmp_path: Path, wrong: object) -> None:
    file = build_run(tmp_path / "run", rounds=3) / "summary.json"
    summary = json.loads(file.read_text())
    file.write_text(json.dumps(summary | wrong if isinstance(wrong, dict) else wrong))
    readers = (RunRecord.read, recording_of, read_summary, lambda run: figures_of(Executed(True, "trusted", run)))
    for reads in readers:
        with pytest.raises((NotARun, NoSummary)) as caught:
            reads(file.parent)
        assert str(file) in str(caught.value) and caught.value.exit_code == BAD_INPUT


def test_a_finished_run_s_summary_may_lack_any_section_but_training(tmp_path: Path) -> None:
    file = build_run(tmp_path / "run", rounds=20) / "summary.json"
    summary = json.loads(file.read_text())
    file.write_text(json.dumps({name: summary[name] for name in ("verdict", "reasons", "training")}))
    record = RunRecord.read(file.parent)
    assert record.finished and key_figures(record) and {event["kind"] for event in record.happened} <= {"drop", "rise"}


def test_sites_are_in_workers_names() -> None:
    assert [site_of(name) for name in ("paris-w0", "new-york-w12", "alone")] == ["paris", "new-york", "alone"]
