"""The table of the README, made of the figures of other benchmarks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.compared import HIVEMIND, OTHER_TASK, OURS, TOOLS, TORCHFT, Found, Links, table
from benchmarks.quickstart import _around

pytestmark = pytest.mark.pure


def cell(subject: str, rate: float, rtt: float, loss_pct: float = 0, carried: bool = True) -> dict[str, Any]:
    return {
        "subject": subject,
        "cell": {"loss_pct": loss_pct},
        "rate": {"error": rate},
        "rtt": {"error": rtt},
        "carried": carried,
    }


FIDELITY = {
    "cells": [
        cell("testbed", 0.001, 0.0001),
        cell("testbed", -0.004, -0.0004),
        cell("testbed", -0.3, 0.0002, carried=False),
        cell("testbed", -0.2, 0.02, loss_pct=1),
        cell("Mininet", -0.4, -0.1),
    ],
    "toggle": [
        {"subject": "testbed", "excess": 0.9, "retransmissions": 0},
        {"subject": "Mininet", "excess": 2.0, "retransmissions": 7},
    ],
}
#: The figures around a drop, of a run without one.
NO_DROP = _around(SimpleNamespace(states={}, decisions=[], rounds=[]))  # type: ignore[arg-type]
FOUND = Found(
    links={name: Links.of(FIDELITY, name) for name in ("testbed", "Mininet")},
    guest=None,
    late_ms=0.5,
    delivery_error=0.01,
    trained={
        "gloo": {"seconds": None},
        "diloco": {"seconds": 12.9},
        "hivemind": {"seconds": 26.2},
        "torchft": {"failed": "RuntimeError: no quorum"},
    },
    missing={},
    limit_s=60.0,
    run={"verdict": "trusted", "reasons": [], **NO_DROP, "asked_s": 1.9, "in_force_s": 5.7},
)


def column(found: Found, tool: str) -> list[str]:
    shown = table(found)
    return [row[shown.columns.index(tool)] for row in shown.rows]


def test_links_have_the_worst_of_the_cells_without_loss_that_the_host_carried() -> None:
    assert Links.of(FIDELITY, "testbed") == Links(0.004, 0.0004, 0.9, 0)
    assert Links.of(FIDELITY, "Mininet") == Links(0.4, 0.1, 2.0, 7)


def test_each_tool_has_a_cell_in_each_row() -> None:
    shown = table(FOUND)
    assert {len(row) for row in shown.rows} == {1 + len(TOOLS)}
    assert OTHER_TASK not in column(FOUND, OURS)


@pytest.mark.parametrize(
    ("trained", "told"),
    [
        ({"seconds": 26.2}, "26 s"),
        ({"seconds": None}, "> 60 s"),
        ({"failed": "RuntimeError: no quorum"}, "no quorum"),
    ],
)
def test_a_system_s_cell_says_how_long_it_took_or_that_it_did_not_arrive(trained: Mapping[str, Any], told: str) -> None:
    found = replace(FOUND, trained={**FOUND.trained, "hivemind": trained})
    assert any(told in text for text in column(found, HIVEMIND))


def test_what_is_missing_is_told_and_no_figure_stands_in_for_it() -> None:
    trained = {name: figures for name, figures in FOUND.trained.items() if name != "torchft"}
    found = replace(FOUND, trained=trained, missing={"torchft": "No module named 'torchft'"})
    assert any("not installed" in text for text in column(found, TORCHFT))
    assert any("No module named" in note for note in table(found).notes)


def test_a_run_without_another_plan_and_a_suspect_one_are_told() -> None:
    run = {"verdict": "suspect", "reasons": ["the host was starved"], **NO_DROP}
    found = replace(FOUND, run=run)
    assert {"none", "suspect"} <= set(column(found, OURS))
    assert any("starved" in note for note in table(found).notes)


@pytest.mark.parametrize(
    ("asked_s", "in_force_s", "told"),
    [(1.9, 5.7, ("1.9", "5.7")), (1.9, None, ("1.9", "never")), (None, None, ("none",))],
)
def test_the_plan_after_a_drop_is_told_as_far_as_the_run_came(
    asked_s: float | None, in_force_s: float | None, told: tuple[str, ...]
) -> None:
    around = {**NO_DROP, "asked_s": asked_s, "in_force_s": in_force_s}
    assert around.keys() == NO_DROP.keys()
    cells = column(replace(FOUND, run={**FOUND.run, **around}), OURS)
    assert any(all(part in text for part in told) for text in cells)


def test_the_testbed_s_links_in_the_guest_kernel_are_told_beside() -> None:
    notes = table(replace(FOUND, guest=Links(0.0123, 0.0004, 0.96, 0))).notes
    assert any("1.23%" in note for note in notes)
