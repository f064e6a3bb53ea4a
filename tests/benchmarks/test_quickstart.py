"""The quickstart with the first plan of each policy held."""

from __future__ import annotations

import pytest

from benchmarks.quickstart import EXPERIMENT, HELD, Cell
from testbed.spec.experiment import Experiment

pytestmark = pytest.mark.pure


@pytest.mark.parametrize("policy", HELD)
def test_what_is_held_is_an_experiment_of_that_policy(policy: str) -> None:
    settings = dict(setting.split("=") for setting in Cell("held", policy=policy).settings)
    spec = Experiment.load(EXPERIMENT, settings).spec
    assert spec.sync.policy == policy and spec.controller.hold


def test_what_follows_is_the_experiment_as_it_is() -> None:
    assert Cell("quiet").settings == () and Experiment.load(EXPERIMENT).spec.sync.policy == "auto"
