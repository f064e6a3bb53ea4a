"""The frontier benchmark's cells, and the comparison of their figures."""

from __future__ import annotations

import json
import sys
from math import inf
from pathlib import Path
from typing import Any

import pytest

from benchmarks.frontier import chosen_schemes, main
from benchmarks.support.frontier import cells
from benchmarks.support.frontier.cells import EMULATED, EMULATED_TASKS, SCHEMES, STEPS, TASKS, TIMED_ROUNDS, Cell
from benchmarks.support.frontier.measure import experiment_of, figures_of, loss_of
from benchmarks.support.frontier.tables import compared, draw, table
from testbed.schemes import SCHEMES as REGISTRY

pytestmark = pytest.mark.pure

TASK = EMULATED_TASKS[0]
KNOWN = [name for name, scheme in SCHEMES.items() if scheme.sync["strategy"] in REGISTRY]


@pytest.mark.parametrize("name", KNOWN)
def test_every_scheme_is_an_experiment_of_as_many_steps(name: str, tmp_path: Path) -> None:
    for task in TASKS:
        spec = experiment_of(Cell(task, name, 3, False, STEPS), tmp_path).spec
        local = 1 if spec.sync.scheme.conducted else spec.sync.own.local_steps  # rounds of a conducted run are steps
        exchanges = 2 if getattr(spec.sync.own, "clip", False) else 1
        assert spec.own_train.rounds * max(local, SCHEMES[name].steps) == STEPS * exchanges
        assert spec.own_train.partition.kind == ("iid" if task.alpha == inf else "dirichlet")


def test_a_star_is_as_mxnet_runs_it_at_its_median_place(tmp_path: Path) -> None:
    spec = experiment_of(Cell(TASK, "star", 1, True, STEPS, timed=True), tmp_path).spec
    assert spec.sync.options["keys"] == "one" and spec.sync.options["server"].endswith("-w0")
    assert spec.own_train.rounds == TIMED_ROUNDS


def test_emulated_are_six_tasks_and_six_schemes_beside_both_references() -> None:
    found = cells.emulated(EMULATED_TASKS, list(EMULATED), 3, STEPS)
    assert len(EMULATED_TASKS) == len(EMULATED) == 6
    assert len({cell.key for cell in found}) == len(found) == 6 * 3 * (6 + 2 + 1)


def test_what_the_registry_lacks_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.frontier.REGISTRY", {"diloco": None})
    assert chosen_schemes(None, False, TASK, STEPS) == ["diloco"]


def test_steps_that_a_scheme_does_not_take_in_whole_exchanges_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["frontier", "--show", "--scheme", "diloco", "--steps", "100"])
    with pytest.raises(SystemExit) as refused:
        main()
    assert refused.value.code == 2


def test_a_run_of_one_round_has_no_time_from_round_to_round(tmp_path: Path) -> None:
    experiment = experiment_of(Cell(TASK, "diloco", 1, False, 30), tmp_path)
    times = {"started_s": 0.0, "finished_s": 1.0, "late_s": 0.0, "compute_s": 0.5, "paced_s": 1.5}
    member = experiment.topology.workers[0].name
    report = {**times, "member": member, "round": 1, "sent_bytes": 1, "received_bytes": 1, "metrics": {}}
    (tmp_path / "rounds.jsonl").write_text(f"{json.dumps(report)}\n")
    assert figures_of(tmp_path, experiment)["round_s"] is None


def figures(losses: list[float | None], sent: float, round_s: float = 1.0) -> dict[str, Any]:
    """Return the figures of a run that evaluated every 10 s."""
    curve = [(10.0 * (number + 1), loss, loss and 2 * loss) for number, loss in enumerate(losses)]
    its = {"mean_bytes": sent, "most_bytes": 3 * sent, "round_s": round_s, "verdict": "trusted"}
    return {"curve": curve, **its}


def key(name: str, seed: int, simulated: bool = False, timed: bool = False) -> str:
    return Cell(TASK, name, seed, simulated, 100, timed).key


def references() -> dict[str, dict[str, Any]]:
    """Return the figures of all-reduce and of both references, by two seeds."""
    found = {}
    for seed in (1, 2):
        found[key("all-reduce", seed, simulated=True)] = figures([3.0, 2.0], 1.0)
        found[key("packing", seed, timed=True)] = figures([], TIMED_ROUNDS * 50.0, 2.0)
        found[key("star", seed, timed=True)] = figures([], TIMED_ROUNDS * 50.0, 20.0)
    return found


def test_loss_bytes_and_time_against_all_reduce(tmp_path: Path) -> None:
    found = references() | {key("diloco", seed): figures([2.5, 2.05, 2.02], 10.0) for seed in (1, 2)}
    found[key("muloco", 1)] = figures([2.5, 2.1], 5.0)
    one = compared(found, TASK, "diloco", 3, 100, simulated=False)
    assert one is not None and one.seeds == one.reached == 2 and one.suspect == 0
    assert one.loss.value == pytest.approx(1.01) and one.worst.value == pytest.approx(1.01)
    assert one.fewer is not None and one.fewer_most is not None
    assert one.fewer.value == pytest.approx(500) and one.fewer_most.value == pytest.approx(500)
    star, packing = one.sooner["star"], one.sooner["packing"]
    assert star is not None and packing is not None and one.seconds == 30.0
    assert star.value == pytest.approx(2000 / 30) and packing.value == pytest.approx(200 / 30)
    never = compared(found, TASK, "muloco", 3, 100, simulated=False)
    assert never is not None and (never.reached, never.seconds, never.sooner["star"]) == (0, None, None)
    assert compared(found, TASK, "hybrid", 3, 100, simulated=False) is None
    assert "0/1" in table([one, never], TASK, 100, simulated=False).rows[1]
    draw({TASK.name: [one, never]}, tmp_path / "figure.svg")
    assert "muloco" in (tmp_path / "figure.svg").read_text()


def test_a_scheme_that_sent_nothing_has_no_ratio_of_bytes(tmp_path: Path) -> None:
    found = references() | {key("halos", seed): figures([2.5, 2.4], 0.0) for seed in (1, 2)}
    one = compared(found, TASK, "halos", 2, 100, simulated=False)
    assert one is not None and one.loss is not None and (one.fewer, one.fewer_most) == (None, None)
    assert table([one], TASK, 100, simulated=False).rows[0].count("nothing") == 2
    draw({TASK.name: [one]}, tmp_path / "figure.svg")


def test_a_scheme_that_diverged_is_counted_and_its_last_finite_loss_is_not(tmp_path: Path) -> None:
    found = references() | {key("muloco", seed): figures([2.5, None], 5.0) for seed in (1, 2)}
    found[key("diloco", 1)], found[key("diloco", 2)] = figures([2.5, 2.02], 10.0), figures([2.5, 1.9, None], 10.0)
    one, none = (compared(found, TASK, name, 2, 100, simulated=False) for name in ("diloco", "muloco"))
    assert one is not None and one.loss is not None and (one.seeds, one.diverged, one.loss.pairs) == (2, 1, 1)
    assert one.loss.value == pytest.approx(1.01)
    assert none is not None and (none.loss, none.worst, none.diverged) == (None, None, 2)
    assert [row[-1] for row in table([one, none], TASK, 100, simulated=False).rows] == ["1", "2"]
    draw({TASK.name: [one, none]}, tmp_path / "figure.svg")


def test_the_last_loss_of_records_is_none_where_it_is_no_number(tmp_path: Path) -> None:
    experiment = experiment_of(Cell(TASK, "diloco", 1, False, STEPS), tmp_path)
    losses = {1: {"test_loss": 2.0, "worst_test_loss": 3.0}, 2: {}, 3: {"test_loss": None, "worst_test_loss": None}}
    times = {"started_s": 0.0, "late_s": 0.0, "compute_s": 0.5, "paced_s": 1.5}
    common = {**times, "sent_bytes": 1, "received_bytes": 1}
    reports = [
        {**common, "member": worker.name, "round": number, "finished_s": float(number), "metrics": metrics}
        for number, metrics in losses.items()
        for worker in experiment.topology.workers[:1]
    ]
    (tmp_path / "rounds.jsonl").write_text("".join(f"{json.dumps(its)}\n" for its in reports))
    found = figures_of(tmp_path, experiment)
    assert found["curve"] == [(3.0, 2.0, 3.0), (5.0, None, None)], "from the first step on, 2 s before the round"
    assert loss_of(found) is None
