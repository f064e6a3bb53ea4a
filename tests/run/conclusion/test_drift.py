"""The drift at merges, by round and fragment, from members' reports."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from testbed.run.conclusion.drift import merges, summary
from testbed.sync.strategies.fragment import sketch

pytestmark = pytest.mark.pure

PLACES = {
    "a-w0": torch.randn(6400, generator=torch.Generator().manual_seed(1)),
    "a-w1": torch.randn(6400, generator=torch.Generator().manual_seed(2)) + 2,
    "b-w0": torch.randn(6400, generator=torch.Generator().manual_seed(3)) - 1,
}
WEIGHTS = {"a-w0": 1.0, "a-w1": 3.0, "b-w0": 4.0}
GROUPS = {"a": ["a-w0", "a-w1"], "b": ["b-w0"], "c": ["c-w0"]}


def reports(number: int, before: float | None, after: float | None, fragment: int = 0) -> list[dict[str, Any]]:
    weights = torch.tensor(list(WEIGHTS.values()))
    mean = (weights[:, None] * torch.stack(list(PLACES.values()))).sum(0) / weights.sum()
    return [
        {
            "member": member,
            "round": number,
            "epoch": 2,
            "finished_s": 100.0 + number,
            "drift": [
                {
                    "fragment": fragment,
                    "weight": WEIGHTS[member],
                    "apart": float((place - mean).norm()),
                    "moved": 50.0,
                    "sketch": sketch(place - mean),
                    "loss_before": before,
                    "loss_after": after,
                }
            ],
        }
        for member, place in PLACES.items()
    ]


def test_groups_stand_where_their_means_do_within_a_tenth_or_two() -> None:
    [merge] = merges(reports(4, 2.0, 1.5), lambda epoch: GROUPS if epoch == 2 else {})
    weights = torch.tensor(list(WEIGHTS.values()))
    mean = (weights[:, None] * torch.stack(list(PLACES.values()))).sum(0) / weights.sum()
    middle = (PLACES["a-w0"] + 3 * PLACES["a-w1"]) / 4
    assert merge.groups.keys() == {"a", "b"}
    assert merge.groups["a"] == pytest.approx(float((middle - mean).norm()), rel=0.3)
    assert merge.groups["b"] == merge.members["b-w0"] == pytest.approx(float((PLACES["b-w0"] - mean).norm()))
    assert (merge.round, merge.fragment, merge.at_s, merge.moved) == (4, 0, 104.0, 50.0)


def test_the_summary_has_parts_of_the_way_and_what_merges_did_to_the_loss() -> None:
    told = [*reports(1, 2.0, 1.5), *reports(2, None, None, 1), *reports(3, 1.0, 1.1)]
    found = merges(told, lambda _: GROUPS)
    assert [(merge.round, merge.fragment) for merge in found] == [(1, 0), (2, 1), (3, 0)]
    said = summary(found)
    assert said is not None
    assert said["members"] == pytest.approx(found[0].apart / 50)
    assert said["groups"]["b"] == pytest.approx(found[0].members["b-w0"] / 50)
    assert said["loss"] == pytest.approx((-0.5 + 0.1) / 2)


def test_a_loss_that_a_merge_makes_zero_counts() -> None:
    said = summary(merges([*reports(1, 0.5, 0.0), *reports(2, 0.25, 0.25)], lambda _: GROUPS))
    assert said is not None
    assert said["loss"] == -0.25


def test_without_a_merge_there_is_no_drift() -> None:
    assert summary(merges([{"member": "a-w0", "round": 1}], lambda _: GROUPS)) is None
