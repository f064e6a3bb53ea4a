"""What a run keeps of what happens in it, for who looks at it."""

from __future__ import annotations

import time
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from testbed.api.stream import State, update_between
from testbed.link import LinkState
from testbed.run.directory import RunDirectory
from testbed.run.story import Story
from testbed.run.terminal.display import Display, Snapshot

pytestmark = pytest.mark.local

STATUS = {
    **{"round": 1, "rounds": 9, "metrics": {}, "round_seconds": 0.1, "plan": None, "epoch": 0},
    **{"swaps": [], "passages": []},
}


class Shown(Display):
    """Keeps what it was to show."""

    def show(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot


class Sample(dict[str, Any]):
    """One that may be referred to weakly."""


def taken(seconds: float, count: int) -> Sample:
    return Sample(at_s=time.time(), clock_s=seconds, bytes={"a->b": count})


def test_what_arrived_is_that_of_the_last_second_and_older_samples_are_not_kept(tmp_path: Path) -> None:
    display, states = Shown(), dict[str, LinkState]()
    story = Story(RunDirectory("story", tmp_path), display)
    kept: list[weakref.ref[Mapping[str, Any]]] = []
    for second in range(10):
        sample = taken(second, 1000 * second**2)
        kept.append(weakref.ref(sample))
        story.sampled(sample)
    del sample
    story.follow(STATUS, states)
    assert display.snapshot.throughput == {"a->b": 8000 * (9**2 - 8**2)}
    assert sum(each() is not None for each in kept) == 2


def test_a_plan_that_comes_into_force_is_an_update_for_who_was_shown_it_before(tmp_path: Path) -> None:
    story = Story(RunDirectory("story", tmp_path), Shown())

    def followed(active: int | None) -> State:
        swap = {"epoch": 1, "reason": "a link is slow", "active_round": active, "active_s": active}
        story.follow({**STATUS, "swaps": [swap]}, {})
        return {"plans": {str(epoch): plan for epoch, plan in story.plans.items()}}

    pending, active, later = followed(None), followed(5), followed(5)
    assert update_between(pending, active).set == {"plans": active["plans"]}
    assert active["plans"]["1"]["swap"]["active_round"] == 5
    assert active["plans"]["1"] is later["plans"]["1"], "what is the same is not looked into"
