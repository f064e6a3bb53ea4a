"""A recorded quickstart replayed through today's controller.

The record shows a controller that learned a link's wrong rate as a fault of plans: at 29.5 s it left its plan for one
that it predicted below the bound of its own view.
"""

from __future__ import annotations

import tarfile
from dataclasses import replace
from itertools import pairwise
from math import log
from pathlib import Path

import pytest

from benchmarks.support.replayed import CannotReplay, Replayed, experiment_of, replay
from testbed.planning.cost import CostModel
from testbed.report.record import RunRecord

pytestmark = [pytest.mark.pure, pytest.mark.long]

RECORDED = Path(__file__).with_name("quickstart-stale-correction.tar.xz")

#: The link between Washington and London falls to a sixth, and recovers.
FALLS_S, RECOVERS_S = 30.0, 60.0


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> RunRecord:
    folder = tmp_path_factory.mktemp("recorded")
    with tarfile.open(RECORDED) as archive:
        archive.extractall(folder)
    return RunRecord.read(folder / "quickstart-stale-correction")


@pytest.fixture(scope="module")
def replayed(record: RunRecord, tmp_path_factory: pytest.TempPathFactory) -> Replayed:
    return replay(record, tmp_path_factory.mktemp("replayed"), until_s=RECOVERS_S)


def test_the_record_has_a_swap_to_a_plan_predicted_below_its_bound(record: RunRecord) -> None:
    (fault,) = [line for line in record.decisions if line["epoch"] == 1]
    assert fault["at_s"] == pytest.approx(29.49, abs=0.01)
    assert fault["proposed_s"] < fault["bound_s"]


def test_decisions_are_made_at_the_ends_of_recorded_rounds(record: RunRecord, replayed: Replayed) -> None:
    """This holds until the recorded controller took a constant link for one that fell."""
    ends = [record.since(one.finished_s) for one in record.rounds]
    moments = [one["at_s"] for one in replayed.decisions if 0 < one["at_s"] < 20]
    assert moments and all(min(abs(at_s - end_s) for end_s in ends) < 0.05 for at_s in moments)


def test_files_of_a_run_that_were_named_by_absolute_paths_find_each_other(record: RunRecord, tmp_path: Path) -> None:
    inputs = {f"/somewhere/{name}": text for name, text in record.manifest["inputs"].items()}
    elsewhere = replace(record, manifest={**record.manifest, "inputs": inputs})
    named = [experiment_of(its, tmp_path / folder) for its, folder in ((record, "a"), (elsewhere, "b"))]
    assert named[0].topology.sites == named[1].topology.sites and named[0].spec.events == named[1].spec.events
    assert {file.relative_to(tmp_path).parts[0] for file in tmp_path.rglob("*.yaml")} == {"a", "b"}


def test_no_swap_is_requested_before_a_link_falls(replayed: Replayed) -> None:
    assert replayed.simulated_from_s == pytest.approx(FALLS_S, abs=0.5)
    assert all(swap["requested_s"] >= FALLS_S for swap in replayed.swaps)


def test_no_prediction_lies_below_the_bound_of_its_view(replayed: Replayed) -> None:
    for decision in replayed.decisions:
        predicted_s = min(float(decision[name] or "inf") for name in ("current_s", "proposed_s"))
        assert predicted_s >= (decision["bound_s"] or 0.0) * (1 - 1e-6)


def test_no_correction_moves_at_the_step_by_more_than_its_spread(replayed: Replayed) -> None:
    around = [one["correction"] for one in replayed.decisions if FALLS_S - 4 < one["at_s"] < FALLS_S + 2]
    assert len(around) >= 2
    for (before, spread), (after, _) in pairwise(around):
        assert abs(log(after / before)) <= spread


def test_a_plan_around_the_fallen_link_is_adopted_within_seconds(record: RunRecord, replayed: Replayed) -> None:
    """Rounds after the drop are simulated at the true rates: the record has them under another plan."""
    first = replayed.swaps[0]
    assert FALLS_S < first["requested_s"] < FALLS_S + 6
    view = record.view("views/0000.json")
    assert view is not None
    before, after = (CostModel(view).loads(replayed.plans[epoch]) for epoch in (0, first["epoch"]))
    for link in ("washington->london", "london->washington"):
        assert after.get(link, 0.0) <= before[link] / 3  # it still carries a sixth
    in_drop = [end_s for end_s, _ in replayed.rounds if FALLS_S < end_s <= RECOVERS_S]
    recorded = [its for one in record.rounds if FALLS_S < (its := record.since(one.finished_s)) <= RECOVERS_S]
    assert len(in_drop) >= 1.6 * len(recorded)


def test_events_come_when_they_were_recorded(record: RunRecord, tmp_path: Path) -> None:
    experiment = experiment_of(record, tmp_path)
    assert [event.at for event in experiment.spec.events] == pytest.approx([70.02, 85.05, 102.4], abs=0.01)


def test_a_run_without_inputs_cannot_be_replayed(record: RunRecord, tmp_path: Path) -> None:
    manifest = {name: value for name, value in record.manifest.items() if name != "inputs"}
    with pytest.raises(CannotReplay):
        experiment_of(replace(record, manifest=manifest), tmp_path)
