"""What a model is worth to each site: test figures weighted as the site's workers have the labels."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Scores:
    """Mean loss and accuracy over the test samples of a label."""

    loss: float
    accuracy: float


class Sites:
    """Each site's mix of labels, from its workers' shards; `sites` names one for each shard, or there are none."""

    def __init__(self, labels: Sequence[int], shards: Sequence[Sequence[int]], sites: Sequence[str]) -> None:
        self._mixes: dict[str, Counter[int]] = {}
        for site, shard in zip(sites, shards, strict=bool(sites)):
            self._mixes.setdefault(site, Counter()).update(labels[sample] for sample in shard)

    def metrics(self, by_label: Mapping[int, Scores]) -> dict[str, float]:
        """`test_loss@SITE`, `accuracy@SITE`, and the worst of each; labels without test samples are left out."""
        found: dict[str, float] = {}
        for site, mix in self._mixes.items():
            held = {label: count for label, count in mix.items() if label in by_label}
            if total := sum(held.values()):
                found[f"test_loss@{site}"] = sum(n * by_label[label].loss for label, n in held.items()) / total
                found[f"accuracy@{site}"] = sum(n * by_label[label].accuracy for label, n in held.items()) / total
        for name, worst in (("test_loss", max), ("accuracy", min)):
            if each := [value for key, value in found.items() if key.startswith(f"{name}@")]:
                found[f"worst_{name}"] = worst(each)
        return found


def histogram(labels: Sequence[int], shard: Sequence[int]) -> dict[str, float]:
    """How many samples a worker has, and how many of each label, as metrics: `samples`, `label@3`."""
    counts = Counter(labels[sample] for sample in shard)
    return {"samples": float(len(shard)), **{f"label@{label}": float(n) for label, n in sorted(counts.items())}}
