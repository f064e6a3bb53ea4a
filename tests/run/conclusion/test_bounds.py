"""The lower bound in a run's summary: where it stands, and what it is of."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from testbed.plan import Group, Plan, Tree
from testbed.planning import make_policy
from testbed.planning.bound import least_period
from testbed.run.conclusion.bounds import lower_bound, provable
from testbed.run.conclusion.stretches import Stretch
from testbed.run.directory import RunDirectory
from testbed.run.view import declared_view
from testbed.spec.experiment import Experiment
from tests.run.running import REPOSITORY

pytestmark = pytest.mark.local

SMOKE = REPOSITORY / "experiments" / "smoke.yaml"


def experiment(**sync: str) -> Experiment:
    return Experiment.load(SMOKE, {f"sync.{name}": value for name, value in sync.items()})


@pytest.mark.parametrize(
    ("sync", "change", "stands"),
    [
        ({}, {}, True),
        ({"strategy": "local_sgd"}, {}, False),
        ({"strategy": "diloco"}, {}, False),
        ({"powersgd_rank": "2"}, {}, False),
        ({}, {"codec": "int8"}, False),
        ({}, {"link_codecs": {"london-w0->paris-w0": "bf16"}}, False),
        ({}, {"groups": ..., "period": 4}, False),
    ],
)
def test_it_stands_where_it_is_proven(
    sync: dict[str, str], change: dict[str, object], stands: bool, tmp_path: Path
) -> None:
    run = experiment(**sync)
    plan = make_policy("mst").plan(declared_view(run.topology, 1000))
    if "groups" in change:
        alone = tuple(Group((name,), (Tree(name, {}, {}),)) for name in plan.members)
        change = {**change, "groups": alone}
    directory = RunDirectory("smoke", tmp_path)
    (directory.path / "plans").mkdir()
    for epoch, made in enumerate((plan, replace(plan, **change))):  # type: ignore[arg-type]
        (directory.path / f"plans/{epoch:04d}.json").write_text(json.dumps(Plan.to_json(made.with_epoch(epoch))))
    assert provable(run, directory) is stands


def test_it_is_a_mean_over_rounds_of_the_network_as_it_was() -> None:
    run = experiment()
    view = declared_view(run.topology, run.spec.round_bytes)
    slow, fast = (dict.fromkeys(view.names, seconds) for seconds in (9.0, 0.0))
    least = [least_period(view, slow), least_period(view, fast)]
    found = (Stretch(10, 0.0, 100.0, slow), Stretch(30, 100.0, 300.0, fast))
    told = lower_bound(run, [], [], found)
    mean = (10 * least[0] + 30 * least[1]) / 40
    assert told["lower_bound_seconds"] == pytest.approx(mean)
    assert told["ratio_to_lower_bound"] == pytest.approx(300 / 40 / mean)
    swap = {"active_s": 150.0, "file": next(iter(run.networks))}
    assert lower_bound(run, [], [swap], found)["lower_bound_seconds"] == pytest.approx(least[0])


def test_nothing_is_told_of_no_rounds() -> None:
    assert lower_bound(experiment(), [], [], ()) == dict.fromkeys(("lower_bound_seconds", "ratio_to_lower_bound"))
