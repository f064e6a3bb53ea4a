"""Shares of the samples: complete, without overlap, none empty, as uneven as asked for."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from testbed.protocol import checked_metrics
from testbed.worker import learner
from testbed.worker.partition import MOST_SITES, Scores, Sites, histogram, partition
from tests.worker.test_worker import write_digits
from tests.worker.workloads import workload

pytestmark = pytest.mark.pure

KINDS = ["iid", "dirichlet", "classes"]


@given(
    st.lists(st.integers(0, 9), min_size=1, max_size=300),
    st.integers(1, 40),
    st.sampled_from(KINDS),
    st.floats(1e-4, 1e3),
    st.integers(0, 2**32),
)
def test_every_sample_is_used_once_and_nobody_has_none(
    labels: list[int], shards: int, kind: str, alpha: float, seed: int
) -> None:
    shards = min(shards, len(labels))
    shares = partition(labels, shards, kind, alpha, seed)
    assert sorted(sample for share in shares for sample in share) == list(range(len(labels)))
    assert len(shares) == shards and all(shares)
    assert shares == partition(labels, shards, kind, alpha, seed)


LABELS = [i % 10 for i in range(1000)]


def labels_per_share(kind: str, alpha: float = 1.0) -> list[int]:
    return [len({LABELS[sample] for sample in share}) for share in partition(LABELS, 10, kind, alpha, 1)]


def test_kinds_differ_as_they_should() -> None:
    assert set(labels_per_share("iid")) == {10}
    assert set(labels_per_share("classes")) == {1}
    assert sum(labels_per_share("dirichlet", 0.05)) < sum(labels_per_share("dirichlet", 100.0))
    sizes = Counter(len(share) for share in partition(LABELS, 10, "iid", 1.0, 1))
    assert sizes == {100: 10}


def test_workers_of_a_site_have_its_labels_and_other_sites_others() -> None:
    sites = ["a", "a", "b", "b", "b"]
    shares = partition(LABELS, 5, "sites", 0.1, 1, sites)
    assert sorted(sample for share in shares for sample in share) == list(range(1000))
    mixes = [Counter(LABELS[sample] for sample in share) for share in shares]

    def apart(one: int, other: int) -> float:
        """Half the sum of differences between two workers' shares of each label."""
        parts = [
            {label: count / sum(mix.values()) for label, count in mix.items()} for mix in (mixes[one], mixes[other])
        ]
        return sum(abs(parts[0].get(label, 0) - parts[1].get(label, 0)) for label in range(10)) / 2

    assert max(apart(0, 1), apart(2, 3), apart(2, 4)) < 0.25 < 0.5 < min(apart(0, 2), apart(1, 4))
    with pytest.raises(ValueError):
        partition(LABELS, 5, "sites", 0.1, 1, ["a", "b"])


def test_what_cannot_be_shared_out_is_refused() -> None:
    with pytest.raises(ValueError):
        partition([0, 1, 2], 4, "iid", 1.0, 0)
    with pytest.raises(ValueError, match="fair"):
        partition([0, 1, 2], 2, "fair", 1.0, 0)


SITE_LABELS = [0, 0, 0, 1, 1, 2]
BY_LABEL = {0: Scores(1.0, 0.9), 1: Scores(3.0, 0.5)}


def test_sites_weigh_labels_as_their_workers_have_them() -> None:
    """Paris has labels 0 0 0 1 in two shards; Tokyo 1 2, and nothing was tested on 2."""
    sites = Sites(SITE_LABELS, [[0, 1], [2, 3], [4, 5]], ["paris", "paris", "tokyo"])
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


def test_the_figures_of_many_sites_fit_into_a_report() -> None:
    """GÉANT's 40 sites: only the worst are told."""
    shards = [[0], [3]] * 20
    found = Sites(SITE_LABELS, shards, [f"site{i}" for i in range(40)]).metrics(BY_LABEL)
    assert found == {"worst_test_loss": 3.0, "worst_accuracy": 0.5}
    few = Sites(SITE_LABELS, shards[:MOST_SITES], [f"site{i}" for i in range(MOST_SITES)]).metrics(BY_LABEL)
    assert len(few) == 2 * MOST_SITES + 2
    checked_metrics(few | histogram(SITE_LABELS, [0]))


def test_without_sites_there_is_nothing_to_say() -> None:
    assert Sites(SITE_LABELS, [[0], [1]], ()).metrics(BY_LABEL) == {}


def test_a_histogram() -> None:
    assert histogram(SITE_LABELS, [0, 1, 3]) == {"samples": 3, "label@0": 2, "label@1": 1}


def test_a_learner_tells_of_its_shard_and_of_all_sites(tmp_path: Path) -> None:
    write_digits(tmp_path)
    work = workload(model="cnn", partition="sites", alpha=0.1, shards=4, sites=("a", "a", "b", "b"))
    model = learner.make(work, tmp_path, torch.device("cpu"))
    described = model.describe()
    assert described["samples"] == sum(count for name, count in described.items() if name.startswith("label@"))
    metrics = model.evaluate()
    assert metrics["worst_test_loss"] == max(metrics["test_loss@a"], metrics["test_loss@b"])
