"""Training that the controller chooses live, simulated with gradients that are real."""

from __future__ import annotations

from pathlib import Path

import pytest

from testbed.report import tables
from testbed.report.page import write_page
from testbed.report.record import RunRecord
from tests.simulation.experiments import LINKS, simulated, write

pytestmark = pytest.mark.local

DIGITS = {"model": "cnn", "batch": 16, "rounds": 60, "evaluate_every": 20}
SLOW = [{**link, "rate": "1mbit"} for link in LINKS]
FAST = [{**link, "rate": "1gbit", "rtt": "0.2ms"} for link in LINKS]
#: Steps so small that samples teach next to nothing: none is lost by taking them apart.
STANDING = {"name": "sgd", "learning_rate": 1e-5}
AUTO = {"strategy": "auto", "policy": "auto"}
CONTROLLER = {"period": "1s"}


def on_slow_links(folder: Path, **train: object) -> RunRecord:
    """Simulate members for which a round of gradients takes 6 s, and a step 0.1 s."""
    with pytest.MonkeyPatch.context() as here:
        here.chdir(folder)
        experiment = write(folder, SLOW, train={**DIGITS, **train}, sync=AUTO, controller=CONTROLLER)
        return RunRecord.read(simulated(experiment, gradients=True).path.resolve())


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory) -> RunRecord:
    return on_slow_links(tmp_path_factory.mktemp("slow"), optimizer=STANDING)


@pytest.mark.long
def test_on_a_slow_network_members_that_learn_send_less_of_every_gradient(tmp_path: Path) -> None:
    record = on_slow_links(tmp_path)
    assert record.finished and record.summary["training"]["identical_parameters"] is True
    plans = [record.plans[epoch] for epoch in sorted(record.epochs)]
    assert plans[0].codec == "fp32" and {"int8", "bins4"} & {plan.codec for plan in plans}
    judged = [line["training"] for line in record.decisions if "training" in line]
    assert any(line["change"] for line in judged)
    for line in judged:
        if line["change"]:
            assert next(its["above"] for its in line["terms"] if its["candidate"] == line["chosen"]) <= 0.01


def test_where_a_step_is_worth_little_members_go_over_to_local_steps_and_end_alike(slow: RunRecord) -> None:
    assert slow.finished
    trainings = [slow.plans[epoch].training for epoch in sorted(slow.epochs)]
    assert trainings[0] is not None and trainings[0].scheme == "gradients"
    assert trainings[-1] is not None and trainings[-1].local_steps > 1
    assert slow.summary["training"]["identical_parameters"] is True
    assert slow.summary["training"]["rounds"] < DIGITS["rounds"] / 2  # type: ignore[operator]
    steps = {report.member: report.metrics["steps"] for report in slow.reports}
    assert set(steps.values()) == {60.0}
    assert all(swap["lost_updates"] == swap["duplicated_updates"] == 0 for swap in slow.summary["swaps"])


def test_what_was_chosen_stands_on_the_page_term_by_term(slow: RunRecord) -> None:
    table = tables.choices(slow)
    assert table is not None and table.rows
    page = write_page(slow).read_text()
    assert "How members trained, and why" in page
    for line in slow.decisions:
        if "training" in line and line["training"]["change"] and line["adopted"]:
            assert line["reason"] == "training"
            assert line["training"]["why"] in page.replace("&#39;", "'")
            assert slow.plans[line["epoch"]].training is not None


def test_where_rounds_cost_nothing_gradients_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    train = {**DIGITS, "rounds": 24}
    record = simulated(write(tmp_path, FAST, train=train, sync=AUTO, controller=CONTROLLER), gradients=True)
    assert record.summary["training"]["rounds"] == 24
    assert {plan.training.scheme for plan in record.plans.values() if plan.training} == {"gradients"}


def test_where_nothing_is_learned_there_is_nothing_to_choose(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    record = simulated(write(tmp_path, SLOW, sync=AUTO, controller=CONTROLLER))
    assert len(record.rounds) == 8
    assert not any("training" in line for line in record.decisions)
