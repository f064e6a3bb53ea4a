"""The run log: the events, samples and plans that it keeps and shows."""

from __future__ import annotations

import io
import re
import threading
import time
import weakref
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from testbed.api.models import EventResource
from testbed.api.stream import State, update_between
from testbed.link import CoDel, LinkState, Queue
from testbed.run.directory import RunDirectory
from testbed.run.run_log import RunLog
from testbed.run.terminal.display import Display, Snapshot
from tests.waiting import PATIENCE_S

pytestmark = pytest.mark.local

STATUS = {
    **{"round": 1, "rounds": 9, "metrics": {}, "round_seconds": 0.1, "plan": None, "epoch": 0},
    **{"swaps": [], "membership_events": []},
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
    run_log = RunLog(RunDirectory("run_log", tmp_path), display)
    kept: list[weakref.ref[Mapping[str, Any]]] = []
    for second in range(10):
        sample = taken(second, 1000 * second**2)
        kept.append(weakref.ref(sample))
        run_log.sampled(sample)
    del sample
    run_log.follow(STATUS, states)
    assert display.snapshot.throughput == {"a->b": 8000 * (9**2 - 8**2)}
    assert sum(each() is not None for each in kept) == 2


def test_a_drop_in_a_trace_is_an_event_on_the_page_and_a_line_in_the_terminal(tmp_path: Path) -> None:
    printed = io.StringIO()
    run_log = RunLog(RunDirectory("run_log", tmp_path), Display(Console(file=printed)))
    for second in range(20):
        run_log.put_in_force(time.monotonic(), "a->b", LinkState(30e6 if second < 10 else 5e6, 0.01))
        run_log.sampled({**taken(second, 1_000_000 * second), "at_s": 100.0 + second})
        run_log.tell()
    (event,) = run_log.events
    assert (event["kind"], event["target"], event["at_s"]) == ("drop", "a->b", 110.0)
    assert EventResource.model_validate(event).after_bps == 5e6
    assert printed.getvalue().count("drop a->b") == 1
    assert not (run_log.directory.path / "events.jsonl").exists(), "no event of the experiment's own"
    assert run_log.by_hand == []


def test_an_event_waits_for_a_sample_that_is_being_added(tmp_path: Path) -> None:
    run_log = RunLog(RunDirectory("run_log", tmp_path), Shown())
    looking, may_end, order = threading.Event(), threading.Event(), []

    def look(*_: object) -> list[Any]:
        looking.set()
        may_end.wait(PATIENCE_S)
        order.append("sample")
        return []

    run_log._steps.look = look  # type: ignore[method-assign]
    with ThreadPoolExecutor(2) as pool:
        sample = pool.submit(run_log.sampled, taken(1.0, 1000))
        assert looking.wait(PATIENCE_S)
        event = pool.submit(lambda: (run_log.happened("change", "a->b"), order.append("event")))
        assert not wait([event], 0.05).done
        may_end.set()
        wait([sample, event])
    assert order == ["sample", "event"]


def test_a_link_s_state_is_recorded_with_its_queue_s_discipline(tmp_path: Path) -> None:
    run_log = RunLog(RunDirectory("run_log", tmp_path), Shown())
    run_log.put_in_force(time.monotonic(), "a->b", LinkState(30e6, 0.01))
    run_log.put_in_force(time.monotonic(), "a->b", LinkState(30e6, 0.01, queue=Queue(discipline=CoDel())))
    assert [line["discipline"] for line in run_log.directory.read("links.jsonl")] == ["droptail", "codel"]


def test_a_link_that_a_network_swap_removed_is_recorded_as_removed(tmp_path: Path) -> None:
    run_log = RunLog(RunDirectory("run_log", tmp_path), Shown())
    run_log.put_in_force(time.monotonic(), "a->b", LinkState(30e6, 0.01))
    run_log.happened("swap", "other", removed=["a->b"])
    _, last = run_log.directory.read("links.jsonl")
    (event,) = run_log.directory.read("events.jsonl")
    assert last == {"at_s": event["at_s"], "link": "a->b", "removed": True}


def test_a_change_is_recorded_with_all_that_is_in_force_over_the_file(tmp_path: Path) -> None:
    printed = io.StringIO()
    run_log = RunLog(RunDirectory("run_log", tmp_path), Display(Console(file=printed)))
    changed = {"rate_bps": 5e6, "delay_s": None, "jitter_s": None, "loss": None}
    run_log.happened("change", "a->b", "hand", changed=changed)
    (event,) = run_log.directory.read("events.jsonl")
    assert event["changed"] == changed and event["by"] == "hand"
    EventResource.model_validate(event)
    run_log.tell()
    run_log.tell()
    assert printed.getvalue().count("change a->b by hand") == 1


def test_the_next_run_on_a_display_prints_its_events_from_the_first_on(tmp_path: Path) -> None:
    """As in a sweep of an experiment whose command trains."""
    printed = io.StringIO()
    display = Display(Console(file=printed))
    for number in range(2):
        run_log = RunLog(RunDirectory("run_log", tmp_path), display)
        run_log.happened("down", f"a{number}-b")
        run_log.tell()
    assert [printed.getvalue().count(f"down a{number}-b") for number in range(2)] == [1, 1]


def test_a_reason_in_brackets_is_shown_as_it_was_given(tmp_path: Path) -> None:
    printed = io.StringIO()
    run_log = RunLog(RunDirectory("run_log", tmp_path), Display(Console(file=printed)))
    run_log.happened("stop", "diverged [/var/log/x] [red]", "hand")
    run_log.tell()
    assert "stop diverged [/var/log/x] [red] by hand" in printed.getvalue()


def test_a_plan_that_comes_into_force_updates_its_earlier_event(tmp_path: Path) -> None:
    run_log = RunLog(RunDirectory("run_log", tmp_path), Shown())

    def followed(active: int | None) -> State:
        swap = {"epoch": 1, "reason": "a link is slow", "active_round": active, "active_s": active}
        run_log.follow({**STATUS, "swaps": [swap]}, {})
        return {"plans": {str(epoch): plan for epoch, plan in run_log.plans.items()}}

    pending, active, later = followed(None), followed(5), followed(5)
    assert update_between(pending, active).set == {"plans": active["plans"]}
    assert active["plans"]["1"]["swap"]["active_round"] == 5
    assert active["plans"]["1"] is later["plans"]["1"], "what is the same is not looked into"


def test_a_plan_that_never_came_into_force_hides_no_later_one(tmp_path: Path) -> None:
    """As that of the first of two members that were lost before a round was over. A swap may also be added before."""
    printed = io.StringIO()
    run_log = RunLog(RunDirectory("run_log", tmp_path), Display(Console(file=printed, width=200)))

    def keep(*swaps: tuple[int, float | None]) -> list[str]:
        printed.seek(0)
        printed.truncate()
        told = [{"epoch": epoch, "reason": "a loss", "active_round": 7, "active_s": at_s} for epoch, at_s in swaps]
        run_log.keep({**STATUS, "swaps": told})
        run_log.tell()
        return re.findall(r"plan (\d+) in force", printed.getvalue())

    assert keep((1, None), (3, 9.0), (4, 10.0)) == ["3", "4"]
    assert keep((1, None), (3, 9.0), (4, 10.0)) == []
    assert keep((1, None), (2, 11.0), (3, 9.0), (4, 10.0)) == ["2"]
