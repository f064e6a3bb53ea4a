"""Local steps of members that train without a centre."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import Mock

import pytest
import torch
from msgspec import to_builtins

from testbed.protocol import Goodbye, Job, NodeConfiguration
from testbed.schemes import named
from testbed.sync.gossip.iteration_reporter import StepFigures
from testbed.sync.rendezvous import Rendezvous
from testbed.worker import learner
from testbed.worker.gossip import PacedSteps, gathered, train
from testbed.worker.loop import work_at
from testbed.worker.pace import Slowness
from tests.worker.test_worker import write_digits
from tests.worker.workloads import workload

pytestmark = pytest.mark.local


def meeting_with(send: Callable[[Goodbye], None], scheme: str = "sgp") -> Rendezvous:
    """Return the rendezvous of a member whose job names a codec that does not exist; `send` sends its messages."""
    place = NodeConfiguration("sgp", ("b",), ("b",), {"a": 0.5, "b": 0.5}, ("b",), {"codec": "fp7"})
    job = Job(10, scheme=scheme, workload=workload(parameters=10).to_json(), assignment=to_builtins(place))
    welcome, channel = SimpleNamespace(roster=dict.fromkeys("ab", ("127.0.0.1", 1))), SimpleNamespace(send=send)
    return cast(Rendezvous, SimpleNamespace(name="a", job=job, node=place, welcome=welcome, channel=channel))


def test_the_controller_is_told_of_a_codec_that_does_not_exist(tmp_path: Path) -> None:
    sent: list[Goodbye] = []
    with pytest.raises(ValueError):
        train(meeting_with(sent.append), named("sgp"), tmp_path)
    assert ["fp7" in goodbye.error for goodbye in sent] == [True]


def test_a_codec_that_does_not_exist_is_the_error_where_the_controller_is_gone(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="fp7"):
        train(meeting_with(Mock(side_effect=BrokenPipeError)), named("sgp"), tmp_path)


def test_the_controller_is_told_of_any_error_before_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("testbed.worker.gossip.make", Mock(side_effect=RuntimeError("no CUDA GPUs")))
    sent: list[Goodbye] = []
    with pytest.raises(RuntimeError):
        train(meeting_with(sent.append), named("sgp"), tmp_path)
    assert ["CUDA" in goodbye.error for goodbye in sent] == [True]


def test_the_controller_is_told_of_a_schemes_file_that_cannot_be_loaded(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("import a_package_that_the_image_lacks\n")
    sent: list[Goodbye] = []
    with pytest.raises(ValueError):
        work_at(meeting_with(sent.append, str(file)), tmp_path)
    assert ["a_package_that_the_image_lacks" in goodbye.error for goodbye in sent] == [True]


def test_an_evaluation_is_reported_with_the_steps_that_came_after_it(tmp_path: Path) -> None:
    write_digits(tmp_path)
    work = workload(model="svm", batch=8, evaluate_every=2)
    model = learner.make(work, tmp_path, torch.device("cpu"))
    steps, parameters = PacedSteps(model, work, NodeConfiguration("prague", (), (), {}, (), {})), gathered(model)
    for iteration in (4, 5):  # evaluated before the first of the two
        parameters = parameters + steps(parameters, iteration)
    figures = steps.figures()
    assert {"test_loss", "loss"} <= figures.metrics.keys() and figures.metrics["steps"] == 2
    assert (figures.steps, figures.late_steps) == (2, 0)
    steps(parameters, 5)
    assert steps.figures().metrics.keys() == {"loss", "steps"}


def test_a_step_that_ends_while_its_figures_are_asked_for_is_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    work = workload(parameters=10)
    model = learner.make(work, Path(), torch.device("cpu"))
    steps, parameters = PacedSteps(model, work, NodeConfiguration("prague", (), (), {}, (), {})), gathered(model)
    steps(parameters, 0)
    reported: list[StepFigures] = []
    reporter = threading.Thread(target=lambda: reported.append(steps.figures()))

    def figures(**more: Any) -> StepFigures:
        if more and not reported:  # the second step's: its thread has read the figures of the first
            reporter.start()
            reporter.join(0.1)
        return StepFigures(**more)

    monkeypatch.setattr("testbed.worker.gossip.StepFigures", figures)
    steps(parameters, 1)
    reporter.join()
    assert reported[0].steps + steps.figures().steps == 2


@pytest.mark.parametrize(("evaluates", "before"), [((1, 0), [0, 6, 12]), ((4, 1), [3, 15]), (None, [])])
def test_the_evaluating_member_evaluates_as_its_rounds_begin(
    evaluates: tuple[int, int] | None, before: list[int], tmp_path: Path
) -> None:
    """Every second round of three steps, or the next one that begins with what came back from an exchange."""
    write_digits(tmp_path)
    place = NodeConfiguration("staggered", (), (), {}, (), {}, steps=3, evaluates=evaluates)
    work = workload(model="svm", batch=8, evaluate_every=2)
    model = learner.make(work, tmp_path, torch.device("cpu"))
    steps, parameters = PacedSteps(model, work, place), gathered(model)
    evaluated = []
    for step in range(17):
        parameters = parameters + steps(parameters, step)
        if "test_loss" in steps.figures().metrics:
            evaluated.append(step)
    assert evaluated == before


def test_a_member_whose_iterations_are_others_steps_evaluates_by_iterations(tmp_path: Path) -> None:
    write_digits(tmp_path)
    place = NodeConfiguration("decoupled_diloco", (), (), {}, (), {}, steps=24)
    work = workload(model="svm", batch=8, evaluate_every=2)
    model = learner.make(work, tmp_path, torch.device("cpu"))
    steps, evaluated, iterations = PacedSteps(model, work, place), [], [0, 1, 2, 2, 5, 6, 6]
    for step, entered in enumerate(iterations):
        steps.entered = partial(int, entered)
        steps(gathered(model), step)
        if "test_loss" in steps.figures().metrics:
            evaluated.append(step)
    assert evaluated == [0, 2, 4, 5]


def test_a_member_that_joins_again_goes_on_with_its_next_batch(tmp_path: Path) -> None:
    write_digits(tmp_path)
    work = workload(model="svm", batch=8)
    changes = []
    for first in (0, 2):
        place = NodeConfiguration("halos", (), (), {}, (), {}, steps=3, evaluates=None, first=first)
        model = learner.make(work, tmp_path, torch.device("cpu"))
        steps, parameters = PacedSteps(model, work, place), gathered(model)
        changes.append([steps(parameters, step) for step in range(3 * first, 7)][-1])
    assert torch.equal(*changes)


def test_a_member_that_joins_again_is_where_the_others_are_in_its_trace_of_speed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    moments: list[float] = []

    def factor(slowness: Slowness, step: int, elapsed_s: float) -> float:
        moments.append(elapsed_s)
        return 1.0

    monkeypatch.setattr(Slowness, "factor", factor)
    work = workload(parameters=10)
    for elapsed_s in (0.0, 5000.0):
        place = NodeConfiguration("halos", (), (), {}, (), {}, elapsed_s=elapsed_s)
        model = learner.make(work, tmp_path, torch.device("cpu"))
        PacedSteps(model, work, place)(gathered(model), 0)
    assert moments[0] < 5000 <= moments[1]
