"""Workloads with what tests don't care about filled in."""

from __future__ import annotations

from typing import Any

from testbed.workload import Workload


def workload(**changes: Any) -> Workload:
    """A synthetic one, unless told otherwise."""
    basics = {"model": "synthetic", "batch": 1, "optimizer": "sgd", "learning_rate": 0.1, "seed": 0}
    return Workload(**{**basics, "shard": 0, "shards": 1, **changes})
