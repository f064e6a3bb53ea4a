"""Local steps of members that train without a centre."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from testbed.worker import learner
from testbed.worker.decentralized import LocalSteps, gathered
from tests.sync.controller import job
from tests.worker.test_worker import write_digits

pytestmark = pytest.mark.unit


def test_an_evaluation_is_reported_with_the_steps_that_came_after_it(tmp_path: Path) -> None:
    write_digits(tmp_path)
    work = job(model="svm", batch=8, evaluate_every=2)
    model = learner.make(work, tmp_path, torch.device("cpu"))
    steps, parameters = LocalSteps(model, work), gathered(model)
    for iteration in (4, 5):  # evaluated before the first of the two
        parameters = parameters + steps(parameters, iteration)
    assert {"test_loss", "loss"} <= steps.figures().metrics.keys()
    steps(parameters, 5)
    assert steps.figures().metrics.keys() == {"loss"}
