"""The CPN benchmark's cells, and the figures of a run's records."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from benchmarks.cpn import enough, figures_of, rounds_to_swap
from benchmarks.support.campaign import seconds_to
from benchmarks.support.cpn.cells import TASKS, Cell, Goal, simulated_cells
from benchmarks.support.cpn.protocols import CONDUCTED, FALL, FLAT, OURS, PROTOCOLS
from benchmarks.support.cpn.tables import events_table, rule_table, table
from testbed.spec.experiment import Experiment

pytestmark = pytest.mark.pure


def experiment_of(cell: Cell, folder: Path) -> Experiment:
    file = folder / "experiment.yaml"
    file.write_text(yaml.safe_dump(cell.experiment()))
    return Experiment.load(file)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_every_cell_is_an_experiment(protocol: str, tmp_path: Path) -> None:
    for task in TASKS:
        spec = experiment_of(Cell(task, protocol, 3), tmp_path).spec
        assert spec.seed == 3 and spec.train.partition.kind == "sites"


def test_a_region_s_links_fall_to_a_tenth() -> None:
    assert {event["change"]["link"] for event in FALL} == {f"r1->r{i}" for i in (2, 3, 4)} | {
        f"r{i}->r1" for i in (2, 3, 4)
    }
    assert {event["at"] for event in FALL} == {"5s"}


def report(member: str, number: int, at_s: float, **metrics: float | None) -> dict[str, Any]:
    """Return a report of a second of computing that ended at `at_s`."""
    times = {"started_s": at_s - 1, "finished_s": at_s, "compute_s": 0.2, "paced_s": 0.3, "late_s": 0.0}
    return {"member": member, "round": number, "epoch": 0, "metrics": metrics, **times}


def test_what_a_run_s_records_say(tmp_path: Path) -> None:
    experiment = experiment_of(Cell("digits", OURS, 1), tmp_path)
    target = TASKS["digits"].goal.loss
    names = [worker.name for worker in experiment.topology.workers]
    reports = [report(name, number, 100.0 + number) for number in (1, 2, 3) for name in names[1:]]
    reports += [
        report(names[0], number, 100.0 + number, test_loss=target * factor, worst_test_loss=2 * target * factor)
        for number, factor in ((1, 3.0), (2, 1.0), (3, 0.5))
    ]
    (tmp_path / "rounds.jsonl").write_text("".join(f"{json.dumps(one)}\n" for one in reports))
    samples = [{"at_s": 99.0 + i, "bytes": {"a->b": 1000 * i}, "cpu": 0.25} for i in range(5)]
    (tmp_path / "traffic.jsonl").write_text("".join(f"{json.dumps(one)}\n" for one in samples))
    (tmp_path / "plans").mkdir()
    (tmp_path / "events.jsonl").write_text("")
    found = figures_of(tmp_path, experiment)
    # The first steps, of half a second, began at 99.5 s.
    assert seconds_to(target, found) == 2.5 and found["seconds"] == 3.5 and found["rounds"] == 3
    assert found["idle"] == pytest.approx(1 - 3 * 0.5 / 3.5)
    assert found["wan_bytes"] == 4000 and found["late"] == 0
    assert found["loss"] == pytest.approx(target / 2) and found["worst_loss"] == pytest.approx(target)


@pytest.mark.parametrize(
    ("losses", "at_s", "over"),
    [([], 1.0, False), ([None], 1.0, False), ([None], 9.0, True), ([None, 0.4], 1.0, True), ([0.6], 1.0, False)],
)
def test_a_run_is_over_at_its_goal_or_its_limit_even_if_it_diverged(
    losses: list[float | None], at_s: float, over: bool, tmp_path: Path
) -> None:
    reports = [report("a", 1, at_s), *({**report("b", 1, at_s), "metrics": {"test_loss": loss}} for loss in losses)]
    reports.append(report("a", 0, 1.0))
    (tmp_path / "rounds.jsonl").write_text("".join(f"{json.dumps(one)}\n" for one in reports))
    assert enough(Goal(loss=0.5, limit_s=5.0), tmp_path) is over


def test_rounds_until_another_plan_is_in_force() -> None:
    reports = [{**report("a", number, 100.0 + number), "epoch": int(number > 5)} for number in range(1, 9)]
    event = {"at_s": 102.5, "kind": "change", "target": "r4->r1"}
    assert rounds_to_swap(reports, [event], {0: 1}) == (3, 0)
    assert rounds_to_swap(reports, [event], {0: 4}) == (3, 2)
    assert rounds_to_swap(reports, [], {}) is None
    assert rounds_to_swap(reports[:5], [event], {}) is None


def test_what_does_not_reach_the_target_counts_as_reaching_it_at_the_limit() -> None:
    target = TASKS["text"].goal.loss
    run = {
        "curve": [(5.0, 2 * target, 9.0), (10.0, target, 9.0)],
        "loss": 1.0,
        "worst_loss": 2.0,
        "wan_bytes": 5e6,
        "idle": 0.1,
        "cpu": 0.3,
    }
    run |= {"seconds": 10.0}
    limit_s = TASKS["text"].goal.limit_s
    found = {Cell("text", OURS, seed).key: run for seed in (1, 7)}
    found |= {Cell("text", "ring", seed).key: {**run, "curve": [(10.0, 2 * target, 9.0)]} for seed in (1, 7)}
    shown, figures = table(found, "text")
    assert figures["ring"]["slower"]["ratio"] == pytest.approx(limit_s / 10) and figures["ring"]["at_least"]
    assert figures[OURS]["slower"]["ratio"] == pytest.approx(1) and not figures[OURS]["at_least"]
    ring = next(row for row in shown.rows if row[0] == "ring")
    assert ring[1:3] == ["-", "0/2"] and ring[3].startswith(">")


def test_events_are_held_against_the_plan_that_follows_them() -> None:
    beyond = TASKS["text"].beyond
    run = {"wan_bytes": 5e6, "rounds_to_swap": 4, "rounds_inside": 3}
    found = {Cell("text", "fall", 1).key: {**run, "curve": [(20.0, beyond.loss, 9.0)]}}
    found[Cell("text", "fall, held", 1).key] = {**run, "curve": [(50.0, beyond.loss, 9.0)], "rounds_to_swap": None}
    shown, figures = events_table(found, "text")
    assert figures["fall, held"]["slower"]["ratio"] == pytest.approx(2.5)
    assert [row[4] for row in shown.rows] == ["4 (3)", "-"]


def test_a_run_in_which_nothing_was_evaluated_has_no_loss() -> None:
    run = {"curve": [], "loss": None, "worst_loss": None, "wan_bytes": 5e6, "idle": 0.1, "cpu": 0.3, "seconds": 10.0}
    shown, figures = table({Cell("text", "diloco 128", 1).key: run}, "text")
    assert shown.rows[0][1:7] == ["-", "0/1", "-", "-", "-", "-"] and figures["diloco 128"]["worst_loss"] is None


def test_a_run_that_diverged_has_no_last_loss_and_is_counted(tmp_path: Path) -> None:
    experiment = experiment_of(Cell("digits", OURS, 1), tmp_path)
    name = experiment.topology.workers[0].name
    reports = [report(name, 1, 101.0, test_loss=2.0, worst_test_loss=2.0), report(name, 2, 102.0)]
    reports.append(report(name, 3, 103.0, test_loss=None, worst_test_loss=None))
    (tmp_path / "rounds.jsonl").write_text("".join(f"{json.dumps(one)}\n" for one in reports))
    (tmp_path / "traffic.jsonl").write_text(json.dumps({"at_s": 99.0, "bytes": {}, "cpu": None}) + "\n")
    found = figures_of(tmp_path, experiment)
    assert found["loss"] is None and found["worst_loss"] is None and seconds_to(1.0, found) is None
    run = {"wan_bytes": 5e6, "idle": 0.1, "cpu": 0.3, "seconds": 10.0}
    kept = {
        Cell("text", "ring", 1).key: {**run, "curve": [(5.0, 9.0, 9.0)], "loss": 9.0, "worst_loss": 9.0},
        Cell("text", "ring", 2).key: {**run, "curve": [(5.0, None, None)], "loss": None, "worst_loss": None},
    }
    shown, _ = table(kept, "text")
    assert shown.rows[0][4].startswith("9.000") and "1 diverged" in shown.rows[0][4]


def test_simulated_cells_have_names_and_rates_of_their_own(tmp_path: Path) -> None:
    cells = list(simulated_cells(["digits"], [0.03, 0.1], 2))
    assert len({cell.key for cell in cells} | {Cell("digits", OURS, 1).key}) == 2 * 3 * 2 + 1
    assert {experiment_of(cell, tmp_path).spec.scale for cell in cells} == {0.03, 0.1}
    assert all(cell.goal.limit_s > TASKS["digits"].goal.limit_s for cell in cells)


def learned(at_s: float, rounds: int, seconds: float) -> dict[str, Any]:
    """Return the figures of a run that reached every goal at `at_s`."""
    return {"curve": [(at_s, 0.1, 0.2)], "rounds": rounds, "seconds": seconds}


def test_the_rule_is_held_against_the_quicker_of_the_two() -> None:
    """A step of the slowest member takes 0.4 s, so that rounds of 1.6 and 0.8 s take four steps and two."""
    cells = list(simulated_cells(["digits"], [0.03, 0.1, 0.3], 1))
    rounds_s = {0.03: 1.6, 0.1: 0.8, 0.3: 0.8}
    ours_s = {0.03: 10.0, 0.1: 10.0, 0.3: 20.0}
    found = {
        cell.key: learned(ours_s[cell.scale] if cell.protocol == OURS else 15.0, 10, 10 * rounds_s[cell.scale])
        for cell in cells
        if cell.protocol != CONDUCTED
    }
    shown, figures = rule_table(found, cells)
    assert [one["steps"] for one in figures] == pytest.approx([4.0, 2.0, 2.0])
    assert [one["named"] for one in figures] == [OURS, FLAT, FLAT]
    assert [one["right"] for one in figures] == [True, False, True]
    assert "2 of 3" in str(shown.notes) and [row[5] for row in shown.rows] == ["-"] * 3


def test_cells_without_both_protocols_are_left_out() -> None:
    cells = list(simulated_cells(["text"], [0.1], 1))
    _, figures = rule_table({cell.key: learned(5.0, 3, 6.0) for cell in cells if cell.protocol == OURS}, cells)
    assert figures == []
