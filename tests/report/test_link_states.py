"""The thinning of links' states."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.report.link_states import link_columns

pytestmark = pytest.mark.pure

BEGAN = 1000.0


def written(file: Path, states: Sequence[dict[str, Any]]) -> Path:
    file.write_text("".join(json.dumps(state) + "\n" for state in states))
    return file


def state(at_s: float, link: str = "a->b", up: bool = True, rate_bps: float = 1e6) -> dict[str, Any]:
    return {"at_s": BEGAN + at_s, "link": link, "rate_bps": rate_bps, "delay_s": 0.02, "loss": 0.0, "up": up}


def test_of_each_piece_the_last_state_of_each_link_is_kept(tmp_path: Path) -> None:
    states = [state(tick / 10, link, rate_bps=1e6 + tick) for tick in range(1000) for link in ("a->b", "b->a")]
    found = link_columns(written(tmp_path / "links.jsonl", states), BEGAN, 100)
    assert set(found) == {"a->b", "b->a"}
    for columns in found.values():
        assert 95 <= len(columns["at_s"]) <= 101
        assert columns["at_s"] == sorted(columns["at_s"])
        assert columns["at_s"][-1] == 99.9 and columns["rate_bps"][-1] == 1_000_999
        assert {len(values) for values in columns.values()} == {len(columns["at_s"])}


def test_a_link_that_rarely_changes_keeps_all_its_states(tmp_path: Path) -> None:
    states = [state(tick / 10) for tick in range(1000)]
    states[500:500] = [state(50.0, "still->one")]
    found = link_columns(written(tmp_path / "links.jsonl", states), BEGAN, 10)
    assert found["still->one"]["at_s"] == [50.0]


@given(ups=st.lists(st.booleans(), max_size=60), pieces=st.integers(1, 40))
def test_whatever_takes_a_link_up_or_down_stays(
    ups: list[bool], pieces: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    states = [state(float(at_s), up=up) for at_s, up in enumerate(ups)]
    file = written(tmp_path_factory.mktemp("states") / "links.jsonl", states)
    kept = link_columns(file, BEGAN, pieces).get("a->b", {"up": []})["up"]
    assert turns(kept) == turns(ups)


def turns(ups: Sequence[bool]) -> list[bool]:
    return [up for place, up in enumerate(ups) if place == 0 or ups[place - 1] != up]


def test_what_is_removed_is_not_there(tmp_path: Path) -> None:
    states = [state(0.0), {"at_s": BEGAN + 1, "link": "a->b", "removed": True}, state(2.0)]
    found = link_columns(written(tmp_path / "links.jsonl", states), BEGAN, 1)
    assert found["a->b"]["there"] == [True, False, True]


def test_no_file_has_no_links_and_a_line_cut_short_is_left_out(tmp_path: Path) -> None:
    assert link_columns(tmp_path / "links.jsonl", BEGAN, 10) == {}
    file = written(tmp_path / "links.jsonl", [state(0.0)])
    with file.open("a") as more:
        more.write('{"at_s": 17900')
    assert link_columns(file, BEGAN, 10)["a->b"]["at_s"] == [0.0]
