"""A recorded quickstart replayed through today's controller.

The record shows a controller that learned a link's wrong rate as a fault of plans: at 29.5 s it left its plan for one
that it predicted below the bound of its own view.
"""

from __future__ import annotations

import tarfile
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.support.replayed import CannotReplay, Replayed, experiment_of, replay
from testbed.report.record import RunRecord

pytestmark = [pytest.mark.pure, pytest.mark.long]

RECORDED = Path(__file__).with_name("quickstart-stale-correction.tar.xz")


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> RunRecord:
    folder = tmp_path_factory.mktemp("recorded")
    with tarfile.open(RECORDED) as archive:
        archive.extractall(folder)
    return RunRecord.read(folder / "quickstart-stale-correction")


@pytest.fixture(scope="module")
def replayed(record: RunRecord, tmp_path_factory: pytest.TempPathFactory) -> Replayed:
    return replay(record, tmp_path_factory.mktemp("replayed"), until_s=40.0)


def test_the_record_has_a_swap_to_a_plan_predicted_below_its_bound(record: RunRecord) -> None:
    (fault,) = [line for line in record.decisions if line["epoch"] == 1]
    assert fault["at_s"] == pytest.approx(29.49, abs=0.01)
    assert fault["proposed_s"] < fault["bound_s"]


def test_decisions_are_made_again_at_the_recorded_moments(record: RunRecord, replayed: Replayed) -> None:
    recorded = [line["at_s"] for line in record.decisions if line["at_s"] < 29]
    assert [one["at_s"] for one in replayed.decisions if one["at_s"] < 29] == pytest.approx(recorded, abs=0.05)


def test_events_come_when_they_were_recorded(record: RunRecord, tmp_path: Path) -> None:
    experiment = experiment_of(record, tmp_path)
    assert [event.at for event in experiment.spec.events] == pytest.approx([70.02, 85.05, 102.4], abs=0.01)


def test_a_run_without_inputs_cannot_be_replayed(record: RunRecord, tmp_path: Path) -> None:
    manifest = {name: value for name, value in record.manifest.items() if name != "inputs"}
    with pytest.raises(CannotReplay):
        experiment_of(replace(record, manifest=manifest), tmp_path)
