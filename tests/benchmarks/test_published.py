"""The published runs' files, and the table that is made of their arms' figures."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from benchmarks import published
from benchmarks.published import (
    COLUMNS,
    NAMES,
    PUBLISHED,
    Arm,
    Cell,
    Claim,
    Published,
    came,
    cells,
    commit_of,
    compact,
    current,
    rows_of,
)
from benchmarks.results import RESULTS, entries, newest
from testbed.simulation.simulate import check_supported

pytestmark = pytest.mark.pure

#: Arms of a claim may differ in FREE fields; where one is always simulated, for its loss alone, in LOOSE ones, too.
FREE, LOOSE = ("sync", "train.rounds", "train.evaluate_every"), ("scale", "controller")


def test_each_folder_has_its_files_and_a_table_of_its_own() -> None:
    assert {folder.name for folder in PUBLISHED.iterdir()} == set(NAMES)
    for name in NAMES:
        assert f"<!-- table: published.{name} -->" in (PUBLISHED / name / "README.md").read_text()


@pytest.mark.parametrize("name", NAMES)
def test_each_arm_is_an_experiment_and_is_claimed_about(name: str) -> None:
    its = Published.load(name)
    assert {arm for claim in its.claims for arm in claim.arms} == set(its.arms)
    for claim in its.claims:
        assert (claim.least is None) != (claim.most is None)
    for cell in {*cells([name], True), *cells([name], False)}:
        experiment = cell.experiment()
        if cell.simulated:
            check_supported(experiment, gradients=True)


@pytest.mark.parametrize("name", NAMES)
def test_arms_of_a_claim_differ_only_in_how_members_train(name: str) -> None:
    its = Published.load(name)
    for claim in its.claims:
        arms = [its.arms[arm] for arm in claim.arms]
        free = (*FREE, *LOOSE) if any(arm.only == "simulated" for arm in arms) else FREE
        fixed = [{key: value for key, value in arm.set.items() if not key.startswith(free)} for arm in arms]
        assert all(one == fixed[0] for one in fixed), claim.says


def test_quick_has_the_first_claims_and_a_simulation_no_arm_that_is_only_emulated() -> None:
    whole = list(cells(NAMES, False))
    assert len(list(cells(NAMES, False, quick=True))) < len(whole) == len(set(whole))
    for cell in cells(NAMES, True):
        assert cell.simulated and Published.load(cell.run).arms[cell.arm].only != "emulated"


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Claim]:
    """One published run `r`, with a claim on a ratio, one on a time to a loss, and one on an arm's own figure."""
    claims = [
        Claim("faster", "abstract", "2", "seconds", of="a", over="b", least=2),
        Claim("sooner", "abstract", "2", "seconds_to", of="a", over="b", least=2, loss=1.0),
        Claim("busy", "abstract", "90", "computing", of="b", most=90),
    ]
    its = Published({"a": Arm(), "b": Arm()}, claims)
    (tmp_path / "r").mkdir()
    (tmp_path / "r" / "claims.yaml").write_text(yaml.safe_dump(msgspec.to_builtins(its)))
    monkeypatch.setattr(published, "PUBLISHED", tmp_path)
    return claims


def figures(seconds: float, losses: list[float | None], verdict: str = "trusted") -> dict[str, Any]:
    curve = [[10.0 * (number + 1), loss] for number, loss in enumerate(losses)]
    return {"seconds": seconds, "computing": 80.0, "curve": curve, "verdict": verdict}


def test_a_claim_is_held_against_the_ratio_of_its_arms(runs: list[Claim]) -> None:
    faster, sooner, busy = runs
    found = {
        Cell("r", "a", False).key: figures(30, [2.0, 1.5, 1.0]),
        Cell("r", "b", False).key: figures(20, [0.9]),
        Cell("r", "a", True).key: figures(30, [2.0, 1.5], "simulated"),
        Cell("r", "b", True).key: figures(10, [0.9], "simulated"),
    }
    assert came(faster, "r", found, simulated=False) == ("1.5", False)
    assert came(faster, "r", found, simulated=True) == ("3", True)
    assert came(sooner, "r", found, simulated=False) == ("3", True)
    assert came(sooner, "r", found, simulated=True) == ("> 3", True)
    assert came(busy, "r", found, simulated=True) == ("80", True)
    assert rows_of(["r"], found, suspect=False)[0] == ("r", "faster", "abstract", "2", "1.5", "3", "**no**")


def test_a_rounds_period_is_counted_within_the_same_seconds_for_all_arms() -> None:
    claim = Claim("faster", "abstract", "2", "round_s", of="a", least=1, within=25)
    assert published.value_of(claim, {"ends": [10.0, 40.0, 20.0]}) == (25 / 2.25, True)
    assert published.value_of(claim, {"ends": [10.0, 20.0]}) == (10, True)


def test_a_suspect_run_gives_no_figure_and_is_not_recorded(runs: list[Claim]) -> None:
    found = {Cell("r", "a", False).key: figures(30, [2.0], "suspect"), Cell("r", "b", False).key: figures(20, [2.0])}
    assert came(runs[0], "r", found, simulated=False) == ("suspect", None)
    assert rows_of(["r"], found, suspect=True)[0][4] == "suspect"
    assert [row[4:] for row in rows_of(["r"], found, suspect=False)] == [("", "", ""), ("", "", ""), ("80", "", "yes")]
    assert came(runs[1], "r", {**found, Cell("r", "a", False).key: figures(30, [0.5])}, False) == ("never", False)


def test_an_arm_that_diverged_has_no_loss_and_does_not_hold(runs: list[Claim]) -> None:
    better = Claim("better", "abstract", "1", "loss", of="a", over="b", most=1.0)
    ends = {"a": {**figures(30, [2.0, None]), "loss": None}, "b": {**figures(20, [0.9]), "loss": 0.9}}
    found = {Cell("r", arm, False).key: its for arm, its in ends.items()}
    assert came(better, "r", found, simulated=False) == ("diverged", False)
    assert came(runs[1], "r", found, simulated=False) == ("> 3", True)


def test_a_table_has_the_commit_at_which_all_its_cells_were_measured() -> None:
    a, b, missing = (Cell("r", arm, False) for arm in "abc")
    found = {a.key: {"commit": "abc"}, b.key: {"commit": "abc"}}
    assert commit_of([a, b, missing], found) == "abc"
    assert commit_of([a, b], {**found, b.key: {"commit": "def"}}) is None
    assert commit_of([a, b], {**found, b.key: {}}) is None, "kept by an earlier version"


def test_a_kept_cell_does_not_count_once_its_arm_has_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = "decoupled-diloco"
    shutil.copytree(PUBLISHED / name, tmp_path / name)
    monkeypatch.setattr(published, "PUBLISHED", tmp_path)
    monkeypatch.setattr(published, "NAMES", [name])
    changed, other = Cell(name, "decoupled", True), Cell(name, "synchronous", True)
    kept = {cell.key: {"settings": cell.settings} for cell in (changed, other)}
    assert current(kept) == kept
    claims = tmp_path / name / "claims.yaml"
    value = yaml.safe_load(claims.read_text())
    value["arms"]["decoupled"] = {"set": {"seed": 2}}
    claims.write_text(yaml.safe_dump(value))
    assert current(kept) == {other.key: kept[other.key]}
    assert current({changed.key: {}}) == {changed.key: {}}, "kept by an earlier version"


def test_recorded_tables_are_of_the_claims_in_the_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known = {(name, claim.says, claim.where, claim.claimed) for name in NAMES for claim in Published.load(name).claims}
    assert {row[:4] for row in newest("published")["claims"].rows} <= known
    assert compact(entries(RESULTS / "published.json")) == (RESULTS / "published.json").read_text()
    monkeypatch.setattr(published, "RECORDED", tmp_path / "published.json")
    row = (NAMES[0], "faster", "abstract", "2", "", "3", "yes")
    for _ in range(2):
        published.record([row], "python -m benchmarks.published", "abc", "2026-11-27")
    whole, own = entries(tmp_path / "published.json")
    assert (whole.columns, whole.rows) == (COLUMNS, (row,))
    assert (own.table, own.columns, own.rows) == (NAMES[0], COLUMNS[1:], (row[1:],))
