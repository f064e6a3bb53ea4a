"""Shares samples out among workers, and weights test figures by each site's share.

Pure: the same arguments give the same shards everywhere.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

#: The most sites whose own test figures are reported.
MOST_SITES = 20


def partition(
    labels: Sequence[int], shards: int, kind: str, alpha: float, seed: int, sites: Sequence[str] = ()
) -> list[list[int]]:
    """Return the sample numbers of each shard. Each number below len(labels) is in exactly one shard.

    No shard is empty: one that the draw left empty gets a sample of the largest.

    Args:
        labels: The label of each sample.
        shards: The number of shards, one for each worker.
        kind: `iid`: shuffled, then dealt. `dirichlet`: each label's samples are split by a draw from Dirichlet(alpha)
            (Yurochkin et al. 2019, arXiv 1905.12022), so shards differ in size, too. `classes`: sorted by label
            and cut, so that a worker sees as few labels as possible. `sites`: split among the sites by Dirichlet draws;
            the workers of a site share its samples evenly at random.
        alpha: The parameter of the Dirichlet draws; a small one gives each worker few labels.
        seed: The seed of all draws.
        sites: The site of each shard, for the kind `sites`.

    Raises:
        ValueError: Another kind, fewer samples than shards, or not one site for each shard.
    """
    if not 0 < shards <= len(labels):
        rule = f"{len(labels)} samples can't be shared out among {shards} workers"
        raise ValueError(f"{rule}; take fewer workers, or a larger data set")
    draw = random.Random(seed)
    order = draw.sample(range(len(labels)), len(labels))
    if kind == "iid":
        return [order[shard::shards] for shard in range(shards)]
    if kind == "classes":
        return _cut(sorted(order, key=lambda sample: labels[sample]), [1.0] * shards)
    if kind == "dirichlet":
        return _fill_empty(_dirichlet(order, labels, shards, alpha, draw))
    if kind == "sites":
        return _fill_empty(_by_site(order, labels, shards, alpha, draw, sites))
    raise ValueError(f"no such partition: {kind!r}; write iid, dirichlet, classes or sites")


def _dirichlet(
    order: Sequence[int], labels: Sequence[int], shards: int, alpha: float, draw: random.Random
) -> list[list[int]]:
    result: list[list[int]] = [[] for _ in range(shards)]
    for label in sorted(set(labels)):
        samples = [sample for sample in order if labels[sample] == label]
        # Gamma draws over their sum are a Dirichlet draw. With a tiny alpha all may underflow to 0.
        shares = [draw.gammavariate(alpha, 1.0) for _ in range(shards)]
        if not sum(shares):
            shares[draw.randrange(shards)] = 1.0
        for shard, piece in zip(result, _cut(samples, shares), strict=True):
            shard.extend(piece)
    return result


def _by_site(
    order: Sequence[int], labels: Sequence[int], shards: int, alpha: float, draw: random.Random, sites: Sequence[str]
) -> list[list[int]]:
    if len(sites) != shards:
        raise ValueError(f"{len(sites)} sites are given for {shards} workers; each worker needs one")
    names = sorted(set(sites))
    result: list[list[int]] = [[] for _ in range(shards)]
    for name, samples in zip(names, _dirichlet(order, labels, len(names), alpha, draw), strict=True):
        workers = [shard for shard in range(shards) if sites[shard] == name]
        dealt = draw.sample(samples, len(samples))
        for place, shard in enumerate(workers):
            result[shard] = dealt[place :: len(workers)]
    return result


def _cut(samples: Sequence[int], shares: Sequence[float]) -> list[list[int]]:
    """Return contiguous pieces in proportion to `shares`."""
    pieces, start, total = [], 0, 0.0
    for share in shares:
        total += share
        stop = round(len(samples) * total / sum(shares))
        pieces.append(list(samples[start:stop]))
        start = stop
    return pieces


def _fill_empty(shards: list[list[int]]) -> list[list[int]]:
    for shard in shards:
        if not shard:
            shard.append(max(shards, key=len).pop())
    return shards


@dataclass(frozen=True, slots=True)
class Scores:
    """The mean loss and the accuracy over the test samples that have one label."""

    loss: float
    accuracy: float


class Sites:
    """The labels of each site, by its workers' shards.

    Of more than MOST_SITES sites only the worst figures are reported: a report holds 64 metrics.

    Args:
        labels: The label of each sample.
        shards: The sample numbers of each shard.
        sites: The site of each shard; empty if test figures are not weighted by site.
    """

    def __init__(self, labels: Sequence[int], shards: Sequence[Sequence[int]], sites: Sequence[str]) -> None:
        self._mixes: dict[str, Counter[int]] = {}
        for site, shard in zip(sites, shards, strict=bool(sites)):
            self._mixes.setdefault(site, Counter()).update(labels[sample] for sample in shard)

    def metrics(self, by_label: Mapping[int, Scores]) -> dict[str, float]:
        """Return `test_loss@SITE` and `accuracy@SITE`, and the worst of each: `worst_test_loss`, `worst_accuracy`.

        Labels without test samples are left out.

        Args:
            by_label: The scores over the test samples of each label, which are weighted by the site's samples.
        """
        found: dict[str, float] = {}
        for site, mix in self._mixes.items():
            held = {label: count for label, count in mix.items() if label in by_label}
            if total := sum(held.values()):
                found[f"test_loss@{site}"] = sum(n * by_label[label].loss for label, n in held.items()) / total
                found[f"accuracy@{site}"] = sum(n * by_label[label].accuracy for label, n in held.items()) / total
        for name, worst in (("test_loss", max), ("accuracy", min)):
            if each := [value for key, value in found.items() if key.startswith(f"{name}@")]:
                found[f"worst_{name}"] = worst(each)
        return found if len(self._mixes) <= MOST_SITES else {n: value for n, value in found.items() if "@" not in n}


def histogram(labels: Sequence[int], shard: Sequence[int]) -> dict[str, float]:
    """Return the number of a worker's samples, and that of each label, as metrics: `samples`, `label@3`."""
    counts = Counter(labels[sample] for sample in shard)
    return {"samples": float(len(shard)), **{f"label@{label}": float(n) for label, n in sorted(counts.items())}}
