"""A campaign measures each cell once, in one or several sittings."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from benchmarks.support.campaign import Campaign, first_step_s, load, seconds_to, without_curves
from benchmarks.support.cpn.cells import Cell as RunCell
from benchmarks.support.forkserver import ForkServer

pytestmark = pytest.mark.local


@dataclass(frozen=True)
class Cell:
    key: str
    late: float = 0.0


CELLS = [Cell("a"), Cell("b", late=0.3), Cell("c")]


def measured(cell: Cell, server: ForkServer | None) -> dict[str, Any]:
    assert server is None
    return {"late": cell.late, "curve": [1.0]}


def test_only_missing_cells_are_measured_up_to_a_limit(tmp_path: Path) -> None:
    campaign = Campaign(tmp_path / "kept.json")
    campaign.measure(CELLS, measured, forks=False, most=1)
    assert list(campaign.read()) == ["a"]
    again: list[str] = []

    def noted(cell: Cell, server: ForkServer | None) -> dict[str, Any]:
        again.append(cell.key)
        return measured(cell, server)

    campaign.measure(CELLS, noted, forks=False)
    assert again == ["b", "c"] and list(campaign.read()) == ["a", "b", "c"]
    assert without_curves(campaign.read())["a"] == {"late": 0.0, "containers": True}


def test_a_failed_cell_is_kept_and_measured_again_after_the_others(tmp_path: Path) -> None:
    campaign = Campaign(tmp_path / "kept.json")
    campaign.measure(CELLS[:1], lambda *_: {"failed": "no member trained", "late": 0.0}, forks=False)
    assert campaign.read()["a"]["failed"]
    again: list[str] = []

    def noted(cell: Cell, server: ForkServer | None) -> dict[str, Any]:
        again.append(cell.key)
        return measured(cell, server)

    for _ in range(2):
        campaign.measure(iter(CELLS), noted, forks=False)
    assert again == ["b", "c", "a"] and "failed" not in campaign.read()["a"]


def test_none_is_begun_when_its_time_is_over(tmp_path: Path) -> None:
    campaign = Campaign(tmp_path / "kept.json")
    campaign.measure(CELLS, measured, forks=False, seconds=-1.0)
    assert campaign.read() == {}


def test_a_cell_whose_compute_was_not_what_is_declared_is_not_kept(tmp_path: Path) -> None:
    campaign = Campaign(tmp_path / "kept.json", most_late=0.2)
    campaign.measure(CELLS, measured, forks=False)
    assert list(campaign.read()) == ["a", "c"]


def test_a_loss_is_reached_when_it_is_first_as_low() -> None:
    run = {"curve": [(10.0, 2.0, 4.0), (15.0, None, None), (20.0, 1.0, 2.0), (30.0, 1.5, 3.0)]}
    assert seconds_to(1.2, run) == 20.0 and seconds_to(0.5, run) is None


@pytest.mark.parametrize(("protocol", "began_s"), [("diloco 8", 7.0), ("overlap", 9.0), ("fedasync", 10.0)])
def test_time_begins_with_the_first_step_under_every_protocol(protocol: str, began_s: float, tmp_path: Path) -> None:
    """Steps of a round are before it, those of a delayed round also during it, those of an iteration in it."""
    sync = load(RunCell("text", protocol, 1).experiment(), tmp_path).spec.sync
    times = {"compute_s": 1.0, "paced_s": 2.0}
    reports = [{"started_s": 10.0 + 5 * number, "finished_s": 12.0 + 5 * number, **times} for number in range(2)]
    assert first_step_s(reports, sync) == began_s
