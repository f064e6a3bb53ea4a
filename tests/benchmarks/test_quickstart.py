"""The quickstart with the first plan of each policy held."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.quickstart import EXPERIMENT, HELD, Cell, _around
from testbed.report.run_files import LinkRecord
from testbed.spec.experiment import Experiment

pytestmark = pytest.mark.pure


@pytest.mark.parametrize("policy", HELD)
def test_what_is_held_is_an_experiment_of_that_policy(policy: str) -> None:
    settings = dict(setting.split("=") for setting in Cell("held", policy=policy).settings)
    spec = Experiment.load(EXPERIMENT, settings).spec
    assert spec.sync.policy == policy and spec.controller.hold


def test_what_follows_is_the_experiment_as_it_is() -> None:
    assert Cell("quiet").settings == () and Experiment.load(EXPERIMENT).spec.sync.policy == "auto"


DROP = (LinkRecord(0.0, 1e7, 0.01), LinkRecord(10.0, 1e6, 0.01), LinkRecord(40.0, 1e7, 0.01))


@pytest.mark.parametrize(
    ("states", "decisions", "rounds", "found"),
    [
        (DROP, [(5.0, 1), (14.0, None), (16.0, 2)], [(1, 12.0), (2, 20.0), (2, 24.0)], (6.0, 10.0)),
        (DROP, [(16.0, 2)], [(1, 12.0)], (6.0, None)),
        (DROP, [(5.0, 1), (45.0, 2)], [(2, 50.0)], (None, None)),
        (DROP[:1], [(16.0, 2)], [(2, 20.0)], (None, None)),
    ],
    ids=["around", "no round by the plan", "no plan", "no drop"],
)
def test_the_way_around_a_drop_is_timed_as_far_as_the_run_came(
    states: Any, decisions: Any, rounds: Any, found: tuple[float | None, float | None]
) -> None:
    record: Any = SimpleNamespace(
        states={"washington->london": states},
        decisions=[{"at_s": at_s, "epoch": epoch} for at_s, epoch in decisions],
        rounds=[SimpleNamespace(epoch=epoch, finished_s=at_s) for epoch, at_s in rounds],
        since=float,
    )
    assert _around(record) == found
