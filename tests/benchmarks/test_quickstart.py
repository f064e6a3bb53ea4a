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

#: Plans by their epoch: the first two send over the link that drops, the others do not.
DIRECT, AROUND = ("washington", "london"), ("washington", "madrid")
PLANS = {0: DIRECT, 1: DIRECT, 2: AROUND, 3: AROUND}


@pytest.mark.parametrize(
    ("states", "decisions", "rounds", "found"),
    [
        (DROP, [(14.0, None), (16.0, 2)], [(0, 12.0), (2, 20.0), (2, 24.0)], (0, 0, 6.0, 9.0, 3)),
        (DROP, [(5.0, 1), (12.0, 1), (15.0, 3)], [(1, 9.0), (1, 14.0), (3, 17.0)], (1, 1, 5.0, 6.0, 2)),
        (DROP, [(16.0, 2)], [(0, 12.0)], (0, 0, 6.0, None, 1)),
        (DROP, [(45.0, 2)], [(0, 39.0), (2, 50.0)], (0, 0, None, None, 1)),
        (DROP[:1], [(16.0, 2)], [(2, 20.0)], (1, 0, None, None, 0)),
    ],
    ids=["around", "early, and through", "no round by the plan", "after the drop", "no drop"],
)
def test_what_was_decided_around_a_drop_is_counted_as_far_as_the_run_came(
    states: Any, decisions: Any, rounds: Any, found: tuple[int, int, float | None, float | None, int]
) -> None:
    routes = {pair: ("->".join(pair),) for pair in (DIRECT, AROUND)}
    record: Any = SimpleNamespace(
        states={"->".join(DIRECT): states},
        decisions=[{"at_s": at_s, "epoch": epoch, "view": "views/0.json"} for at_s, epoch in decisions],
        plans={
            epoch: SimpleNamespace(edges=lambda pair=pair: [(*pair, 0)], trees=[SimpleNamespace(share=1.0)])
            for epoch, pair in PLANS.items()
        },
        rounds=[SimpleNamespace(epoch=epoch, entered_s=at_s - 1.0, finished_s=at_s) for epoch, at_s in rounds],
        view=lambda _: SimpleNamespace(routes=routes),
        since=float,
    )
    assert tuple(_around(record).values()) == found
