"""The stream's differences: applied one after the other, they give the state."""

from __future__ import annotations

import asyncio
import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from testbed.api import stream as module
from testbed.api.stream import MOST_WAITING, Follower, State, StateFeed, Update, update_between
from tests.waiting import PATIENCE_S

pytestmark = pytest.mark.local

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(0, 3) | st.floats(0, 1) | st.sampled_from(["", "a", "b"]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from("xy"), inner, max_size=2),
    max_leaves=3,
)
STATES = st.dictionaries(
    st.sampled_from(["links", "sites", "events"]), st.dictionaries(st.sampled_from("abc"), VALUES, max_size=3)
)


def without_empty_sections(state: State) -> dict[str, dict[str, Any]]:
    """Return the state without empty sections, which updates leave out."""
    return {section: dict(values) for section, values in state.items() if values}


def updated(state: State, update: Update) -> State:
    """Return the state after an update."""
    sections = {section: dict(values) for section, values in state.items()}
    for section, values in update.set.items():
        sections.setdefault(section, {}).update(values)
    for section, keys in update.removed.items():
        for key in keys:
            sections[section].pop(key)
    return sections


@given(st.lists(STATES, min_size=1, max_size=5))
@example([{"sites": {"a": [0]}}, {"sites": {"a": [False]}}])
@example([{"sites": {"a": {"x": 1}}}, {"sites": {"a": {"x": 1.0}}}])
def test_updates_applied_to_a_snapshot_are_the_state(states: list[State]) -> None:
    known = states[0]
    for before, after in pairwise(states):
        update = update_between(before, after)
        sent = json.loads(json.dumps({"set": update.set, "removed": update.removed}))
        known = updated(known, Update(sent["set"], sent["removed"]))
        assert without_empty_sections(known) == without_empty_sections(after)
        assert json.dumps(without_empty_sections(known), sort_keys=True) == json.dumps(
            without_empty_sections(after), sort_keys=True
        )  # 1 is not true


@given(STATES)
def test_of_nothing_new_there_is_nothing_to_tell(state: State) -> None:
    assert not update_between(state, json.loads(json.dumps(state)))


def test_followers_get_a_snapshot_then_each_update_and_ask_for_what_they_lack(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LEAST_APART_S", 0.0)
    state: dict[str, dict[str, Any]] = {"links": {"a": 0}}

    async def follow() -> None:
        feed = StateFeed(lambda: {section: dict(values) for section, values in state.items()}, clock=lambda: 9.0)

        async def change(value: int, follower: Follower) -> dict[str, Any]:
            state["links"]["a"] = value
            feed.announce()
            return await follower.next()

        with feed.following() as first:
            told = await first.next()
            assert told == {"kind": "snapshot", "number": 1, "at_s": 9.0, "state": {"links": {"a": 0}}}
            told = await change(1, first)
            assert told == {"kind": "update", "number": 2, "set": {"links": {"a": 1}}, "removed": {}}
            with feed.following() as second:
                assert (await second.next())["number"] == 2
                told = await change(2, first)
                assert (told["kind"], told["number"]) == ("update", 3)
                assert await second.next() == told
            first.want_snapshot()
            assert (await first.next())["kind"] == "snapshot"
        state["links"]["a"] = 7
        with feed.following() as late:
            told = await late.next()
            assert (told["number"], told["state"]) == (4, {"links": {"a": 7}}), "what came while nobody followed"

    asyncio.run(asyncio.wait_for(follow(), PATIENCE_S))


async def test_a_slow_reader_sees_a_number_left_out() -> None:
    follower = Follower(lambda: None)
    for number in range(1, MOST_WAITING + 10):
        follower.offer(number, {}, Update({"links": {"a": number}}, {}), 0.0)
    numbers = [(await follower.next())["number"] for _ in range(MOST_WAITING)]
    assert numbers == list(range(1, MOST_WAITING + 1))
    follower.offer(MOST_WAITING + 10, {}, Update({"links": {"a": 0}}, {}), 0.0)
    assert (await follower.next())["number"] == MOST_WAITING + 10
