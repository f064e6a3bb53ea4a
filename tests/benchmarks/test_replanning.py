"""The benchmark of re-planning: simulated cells, and the claims of its tables."""

from __future__ import annotations

import json
from argparse import Namespace
from pathlib import Path

import pytest

from benchmarks import replanning
from benchmarks.replanning import Compared, claims, networks, score_claims
from benchmarks.support.wans import Wan
from benchmarks.support.window import Cell, simulate
from testbed.report.score import Score, SwapScore


@pytest.mark.pure
def test_claims_are_of_the_networks_where_there_is_something_to_gain_and_of_the_others() -> None:
    def network(hold: int, follow: int, oracle: int, name: str = "any") -> Compared:
        return Compared(name, 1, {"hold": hold, "follow": follow, "oracle": oracle}, 1)

    ones = [network(50, 70, 80), network(50, 65, 65, "regions-6"), network(50, 49, 40), network(50, 51, 55)]
    values = [claim.value for claim in claims(ones)]
    assert values[0] == pytest.approx((1.4 * 1.3) ** 0.5)
    assert values[1] == pytest.approx((0.98 * 1.02) ** 0.5)
    assert values[2] == pytest.approx(0.98)
    assert values[3] == pytest.approx((70 / 80 + 1 + 0.98 + 51 / 55) / 4), "holding is the least an oracle does"
    assert values[4] == pytest.approx(1.3)


@pytest.mark.pure
def test_estimates_on_lte_and_swaps_on_other_networks_than_constant_ones_are_no_faults() -> None:
    swaps = tuple(SwapScore(epoch, 10.0 * epoch, None, None, None) for epoch in (1, 2))
    scores = {
        "auto/lte-5/1/follow": Score(errors=(3.0,)),
        "auto/drop-5/1/follow": Score(errors=(0.01,) * 10, swaps=swaps),
        "auto/constant-6/1/follow": Score(swaps=swaps[:1], lasted_s=(65.0,)),
    }
    found = {claim.name: claim for claim in score_claims(scores)}
    assert all(claim.held for claim in found.values())
    again = score_claims({"auto/constant-6/1/follow": Score(swaps=swaps, lasted_s=(65.0,))})
    assert [claim.name for claim in again if not claim.held] == ["constant networks: swaps in 120 s"]


@pytest.mark.pure
def test_networks_of_a_class_have_more_seeds_than_the_familys_unless_seeds_are_named() -> None:
    def cells(**args: object) -> list[Cell]:
        given = {"unseen": False, "quick": False, "networks": None, "seeds": None, "recorded": None, "policy": "auto"}
        return replanning.wanted(Namespace(**{**given, **args}))

    whole = cells()
    assert len(whole) == (8 * 1 + 2 * 3) * 3
    assert {cell.wan.seed for cell in whole if cell.wan.kind == "cloud"} == {1, 2, 3}
    unseen = cells(unseen=True, seeds=[103, 104])
    assert {(cell.wan.name, cell.wan.seed) for cell in unseen} >= {("regions-6", 104), ("drop-6", 103)}
    assert {cell.wan.name for cell in cells(networks=networks("cloud-4"), seeds=[7])} == {"cloud-4"}


def refused(*words: str) -> None:
    with pytest.raises(SystemExit) as ended:
        replanning.main(words)
    assert ended.value.code == 2


@pytest.mark.pure
@pytest.mark.parametrize("name", ["drop", "dropp-5", "drop-two", "drop-2", "regions-11", ""])
def test_a_network_that_there_is_not_is_refused(name: str) -> None:
    refused("--show", "--networks", f"drop-5,{name}")


@pytest.mark.pure
def test_show_without_kept_cells_is_refused(tmp_path: Path) -> None:
    refused("--show", "--kept", str(tmp_path / "kept.json"))


@pytest.mark.pure
def test_a_folder_without_recorded_links_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "Verizon-EVDO-driving.down").write_text("1\n")
    refused("--show", "--recorded", str(tmp_path))
    assert "argument --recorded" in capsys.readouterr().err


@pytest.mark.local
def test_a_simulated_cell_has_the_controllers_own_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    record, _ = simulate(Cell(Wan("constant", 4, 1), "follow", "auto"), window_s=4.0)
    assert record.manifest["simulated"] and record.end_s == 4.0
    assert record.rounds and record.decisions
    assert record.estimates[-1]["links"], "the members' trains are the estimator's samples"


@pytest.mark.pure
def test_cells_of_a_simulation_are_not_taken_for_emulated_ones(tmp_path: Path) -> None:
    kept = tmp_path / "kept.json"
    kept.write_text(json.dumps({"auto/drop-5/1/hold": {"rounds": 1, "simulated": True}}))
    refused("--networks", "drop-5", "--seeds", "1", "--show", "--kept", str(kept))


@pytest.mark.pure
def test_kept_cells_of_other_recorded_links_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, row in (("default", "1\n"), ("other", "2\n")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "ATT-LTE-driving.down").write_text(row)
    monkeypatch.setattr(replanning, "recorded", lambda: tmp_path / "default")
    kept = tmp_path / "kept.json"
    kept.write_text(json.dumps({"auto/lte-5/1/hold": {"rounds": 1}}))
    words = ["--networks", "lte-5", "--seeds", "1", "--show", "--json", "--kept", str(kept)]
    refused(*words, "--recorded", str(tmp_path / "other"))
    assert replanning.main(words) == 0, "a cell of an earlier version is of the default links"


@pytest.mark.pure
@pytest.mark.parametrize(("follow", "code"), [(70, 0), (40, 1)])
def test_a_missed_claim_is_named_and_ends_with_1(
    follow: int, code: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rounds = {"hold": 50, "follow": follow, "oracle": 70}
    cells = {
        f"auto/drop-5/1/{mode}": {"rounds": its, "swaps": 1, "directory": str(tmp_path / mode), "simulated": True}
        for mode, its in rounds.items()
    }
    (kept := tmp_path / "kept.json").write_text(json.dumps(cells))
    words = ["--simulated", "--networks", "drop-5", "--seeds", "1", "--show", "--kept", str(kept), "--json"]
    assert replanning.main(words) == code
    said = capsys.readouterr()
    missed = json.loads(said.out)["missed"]
    if code == 0:
        assert (missed, said.err) == ({}, "")
    else:
        assert missed["follow : hold, the worst network"] == "≥ 0.95"
        assert "claim missed: follow : hold, the worst network: 0.800, claimed ≥ 0.95" in said.err.splitlines()
