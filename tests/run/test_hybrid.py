"""What hybrid synchronization is told of an experiment."""

from __future__ import annotations

from typing import Any

import pytest

from testbed.run.hybrid import options_of, period_of, steps_of
from testbed.schemes.hybrid.algorithm import work
from testbed.spec.experiment import ExperimentFile
from testbed.spec.sync import read_sync
from testbed.spec.topology import Worker

pytestmark = pytest.mark.unit


def spec(**sync: Any) -> ExperimentFile:
    train = {"model": "cnn", "rounds": 8}
    return ExperimentFile(name="x", topology="t", train=train, compute={"step_time": "50ms"}, sync=read_sync(sync))  # type: ignore[arg-type]


def test_steps_follow_speed() -> None:
    workers = [Worker(f"a-w{i}", "a", speed, None, 0, None) for i, speed in enumerate((2.0, 1.0, 0.5, 0.1))]
    assert steps_of(workers, 8) == (8, 4, 2, 1)


def test_the_cpn_policy_knows_the_experiment_s_steps() -> None:
    plain = spec(strategy="hybrid", policy="cpn", every=4, options={"spatial": "sharded"})
    known = {"every": 4, "temporal": False, "overlap": False, "step_s": 0.05, "spatial": "sharded"}
    assert options_of(plain) == known
    assert options_of(spec(policy="cpn", options={"step_s": 1.0}))["step_s"] == 1.0
    staggered = options_of(spec(strategy="staggered", policy="cpn", options={"groups": "search"}))
    assert staggered["temporal"] and staggered["groups"] == "search"
    assert options_of(spec(strategy="staggered", policy="cpn"))["groups"] == "sites"
    assert options_of(spec(policy="ring", options={"order": "naive"})) == {"order": "naive"}


def test_who_says_when_all_synchronize() -> None:
    assert period_of(spec(strategy="hybrid", policy="star", period=3)) == 3
    assert period_of(spec(strategy="hybrid", policy="cpn", period=3)) == 1
    assert period_of(spec(strategy="diloco")) == 1


def test_steps_count_by_the_members_mean_work() -> None:
    assert work(2, (8, 2), prox=0.0) == pytest.approx(2 / 5)
    assert work(4, (8, 2), prox=0.0) == pytest.approx(4 / 5)
    assert work(3, (), prox=0.0) == 1
