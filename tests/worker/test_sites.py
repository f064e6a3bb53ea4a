"""Test figures as the sites have the labels."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from testbed.worker import learner
from testbed.worker.sites import Scores, Sites, histogram
from tests.worker.test_worker import write_digits
from tests.worker.workloads import workload

pytestmark = pytest.mark.pure

LABELS = [0, 0, 0, 1, 1, 2]
BY_LABEL = {0: Scores(1.0, 0.9), 1: Scores(3.0, 0.5)}


def test_sites_weigh_labels_as_their_workers_have_them() -> None:
    """Paris has labels 0 0 0 1 in two shards; Tokyo 1 2, and nothing was tested on 2."""
    sites = Sites(LABELS, [[0, 1], [2, 3], [4, 5]], ["paris", "paris", "tokyo"])
    assert sites.metrics(BY_LABEL) == pytest.approx(
        {
            "test_loss@paris": 1.5,
            "accuracy@paris": 0.8,
            "test_loss@tokyo": 3.0,
            "accuracy@tokyo": 0.5,
            "worst_test_loss": 3.0,
            "worst_accuracy": 0.5,
        }
    )


def test_without_sites_there_is_nothing_to_say() -> None:
    assert Sites(LABELS, [[0], [1]], ()).metrics(BY_LABEL) == {}


def test_a_histogram() -> None:
    assert histogram(LABELS, [0, 1, 3]) == {"samples": 3, "label@0": 2, "label@1": 1}


def test_a_learner_tells_of_its_shard_and_of_all_sites(tmp_path: Path) -> None:
    write_digits(tmp_path)
    work = workload(model="cnn", partition="sites", alpha=0.1, shards=4, sites=("a", "a", "b", "b"))
    model = learner.make(work, tmp_path, torch.device("cpu"))
    described = model.describe()
    assert described["samples"] == sum(count for name, count in described.items() if name.startswith("label@"))
    metrics = model.evaluate()
    assert metrics["worst_test_loss"] == max(metrics["test_loss@a"], metrics["test_loss@b"])
