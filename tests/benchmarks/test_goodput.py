"""The faults and the figures of `benchmarks.goodput`, and its experiments."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest

from benchmarks.goodput import OTHERS, OWN, Cell, Round, figures_of, loss_difference, own_rounds, table, told_rounds
from benchmarks.support.goodput import settings
from benchmarks.support.goodput.faults import FAULT_EACH_S, drawn
from testbed.run.jobs import Jobs
from testbed.spec.experiment import Experiment
from testbed.workload import STEP_OVERRUN
from tests.chaos.faults import Pause

pytestmark = pytest.mark.pure


def test_each_four_faults_are_one_of_each_kind_in_even_distances_the_same_by_a_seed() -> None:
    found = drawn(1, ["a-w0", "b-w0"], ["a->b"], 300.0, 1000.0)
    assert list(map(str, found)) == list(map(str, drawn(1, ["a-w0", "b-w0"], ["a->b"], 300.0, 1000.0)))
    assert list(map(str, found)) != list(map(str, drawn(2, ["a-w0", "b-w0"], ["a->b"], 300.0, 1000.0)))
    kinds = [type(fault) for fault in found]
    assert len(kinds) == 10 and all(len(set(kinds[at : at + 4])) == 4 for at in (0, 4))
    assert {later.at.unix_s - at.at.unix_s for at, later in pairwise(found)} == {FAULT_EACH_S}
    assert all(0.5 <= fault.seconds <= 5 for fault in found if isinstance(fault, Pause))
    assert len({type(fault) for fault in drawn(1, ["a-w0"], ["a->b"], 60.0, 0.0)}) == 4


@pytest.mark.parametrize("system", [*OWN, *OTHERS])
def test_each_system_has_sixteen_members(system: str, tmp_path: Path) -> None:
    topology, _ = Cell(system, 1, True, 1.0).write(tmp_path, "python")
    experiment = Experiment.load(tmp_path / "experiment.yaml")
    assert len(topology.workers) == settings.MEMBERS and (experiment.spec.program is None) == (system in OWN)
    if system in OWN:
        Jobs(experiment)


def test_a_round_counts_once_in_the_time_and_one_that_was_undone_does_not() -> None:
    rounds = [Round(10.0 + number, "all", number, 8.0, 4.0 - number) for number in (1, 2, 3)]
    rounds += [Round(14.0, "all", 1, None), Round(15.0, "all", 2, 8.0, 1.5)]
    assert figures_of(rounds, 10.0, 20.0) == {
        **{"samples": 16.0, "samples_per_s": 0.8, "late": 0.0},
        "curve": [(8.0, 3.0), (16.0, 1.5)],
    }


def test_a_round_before_all_members_train_counts_in_the_curve_alone() -> None:
    rounds = [Round(9.0, "a", 1, 8.0, 4.0, late=True), Round(10.0, "b", 1, 8.0), Round(13.0, "a", 2, 8.0, 3.0)]
    assert figures_of(rounds, 10.0, 20.0) == {
        **{"samples": 6.0, "samples_per_s": 0.3, "late": 0.0},
        "curve": [(8.0, 4.0), (24.0, 3.0)],
    }


def test_a_round_under_way_at_the_end_counts_by_the_part_of_its_time() -> None:
    rounds = [Round(14.0, "a", 1, 8.0), Round(24.0, "a", 2, 8.0), Round(34.0, "a", 3, 8.0), Round(25.0, "b", 1, 9.0)]
    rounds += [Round(41.0, "c", 1, 8.0)]  # more than 20 s after the end
    assert figures_of(rounds, 10.0, 10.0)["samples"] == pytest.approx(8.0 + 0.6 * 8.0 + 9.0 * 10 / 15)


def test_losses_are_compared_at_as_many_samples() -> None:
    free, faulty = {"curve": [(0.0, 4.0), (100.0, 2.0)]}, {"curve": [(0.0, 4.0), (50.0, 3.3)]}
    assert loss_difference(faulty, free) == (50.0, pytest.approx(0.1))
    assert loss_difference({"curve": []}, free) is None
    assert loss_difference({"curve": [(200.0, 1.0)]}, free) is None
    assert loss_difference({"curve": [(0.0, 4.0), (50.0, None)]}, free) is None, "it diverged"


def test_samples_are_those_of_reports_and_of_printed_lines(tmp_path: Path) -> None:
    common = {"member": "a", "compute_s": 1.0, "paced_s": 3.0, "finished_s": 5.0, "late_s": 0.0}
    reports = [
        {**common, "round": 1, "metrics": {"samples_per_s": 16.0, "test_loss": 2.0}},
        {**common, "round": 2, "metrics": {"samples_per_s": 16.0, "steps": 3.0}, "late_s": 9.0},
    ]
    (tmp_path / "rounds.jsonl").write_text("".join(f"{json.dumps(its)}\n" for its in reports))
    assert list(own_rounds(tmp_path)) == [
        Round(5.0, "a", 1, 64.0, 2.0),
        Round(5.0, "a", 2, 3.0 * settings.BATCH, late=True),
    ]
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "a.log").write_text(
        'warning {"member"}\n{"member": "a", "at": 1.0, "began": true}\n{"member": "all", "at": 2.0, "resumed": 0}\n'
        '{"member": "a", "at": 3.0, "round": 7, "samples": 32, "late_s": 0}\n{"member": "a", "at": 4.0, "rou'
    )
    assert list(told_rounds(tmp_path)) == [Round(2.0, "all", 0, None), Round(3.0, "a", 7, 32)]


def test_a_step_of_all_members_is_late_by_its_own_declared_time(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    late_s = 2 * STEP_OVERRUN * settings.STEP_S
    together = {"member": settings.TOGETHER, "samples": settings.MEMBERS * settings.BATCH}
    alone = {"member": "a", "samples": settings.EVERY * settings.BATCH}
    lines = [{**its, "at": 1.0, "round": 1, "late_s": late_s} for its in (together, alone)]
    (tmp_path / "logs" / "a.log").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    assert [its.late for its in told_rounds(tmp_path)] == [True, False]


def test_the_table_pairs_runs_of_a_seed() -> None:
    run = {"curve": [(0.0, 4.0), (50.0, 3.0)], "wrong": 0, "means": 9, "ended": None, "late": 0.0}
    found = {
        Cell("diloco", 1, False, 5.0): {**run, "samples_per_s": 20.0},
        Cell("diloco", 1, True, 5.0): {**run, "samples_per_s": 15.0, "late": 0.26},
        Cell("hop", 1, True, 5.0): {**run, "samples_per_s": 15.0},
        Cell("torchft", 1, True, 5.0): {"failed": "it did not begin"},
    }
    rows = table(["diloco", "hop", "torchft"], found, {"hivemind": "it is missing"}, 5.0).rows
    assert [row[0] for row in rows] == ["hivemind", "diloco", "torchft"]
    assert rows[1][1:6] == ["20.0", "15.0", "0.75", "+0.0 % at 50", "0 of 18"]
    assert "26%" in rows[1][6]
