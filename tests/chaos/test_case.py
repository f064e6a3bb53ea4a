"""The same seed draws the same cases, and each case is a valid experiment."""

from __future__ import annotations

from pathlib import Path

import pytest

from testbed.run.assignments import check_policy
from testbed.run.jobs import Jobs
from testbed.spec.experiment import Experiment
from tests.chaos.case import CONTAINERS_ONE_OF, Case

pytestmark = pytest.mark.pure

NUMBERS = range(60)


def test_a_case_is_the_same_whenever_it_is_drawn() -> None:
    assert [Case.drawn(3, number) for number in NUMBERS] == [Case.drawn(3, number) for number in NUMBERS]
    assert Case.drawn(3, 0) != Case.drawn(4, 0)


def test_a_fifth_of_the_cases_is_in_containers() -> None:
    assert sum(Case.drawn(3, number).containers for number in NUMBERS) == len(NUMBERS) / CONTAINERS_ONE_OF


def test_each_case_is_an_experiment_that_runs(tmp_path: Path) -> None:
    for number in NUMBERS:
        case = Case.drawn(3, number)
        experiment = Experiment.load(case.write(tmp_path))
        check_policy(experiment)
        Jobs(experiment)
        assert tuple(worker.name for worker in experiment.topology.workers) == case.members
