"""Experiments that train by a command."""

from __future__ import annotations

from pathlib import Path

import pytest

from testbed.spec.errors import SpecError
from testbed.spec.experiment import Experiment

pytestmark = pytest.mark.pure

DDP = Path(__file__).parents[2] / "experiments/ddp.yaml"


def test_one_command_is_every_workers() -> None:
    experiment = Experiment.load(DDP)
    program = experiment.spec.program
    assert program is not None
    commands = program.commands(experiment.topology)
    assert set(commands) == {worker.name for worker in experiment.topology.workers}
    assert commands["madrid-w0"][:2] == ["python", "ddp.py"]


def test_each_worker_may_have_its_own(tmp_path: Path) -> None:
    overrides = {"train.command": "{paris-w0: [iperf3, -s], london-w0: [iperf3, -c, x]}", "train.image": "iperf3:1"}
    experiment = Experiment.load(DDP, overrides)
    program = experiment.spec.program
    assert program is not None
    assert program.commands(experiment.topology).keys() == {"paris-w0", "london-w0"}
    assert program.image_from(tmp_path) == "iperf3:1"
    (tmp_path / "iperf3:1").touch()
    assert program.image_from(tmp_path) == str(tmp_path / "iperf3:1")


@pytest.mark.parametrize(
    ("key", "value", "field", "remedy"),
    [
        ("train.command", "[]", "train.command", ""),
        ("train.command", "{rome-w0: [a]}", "train.command.rome-w0", "paris-w0"),
        ("train.files", "nowhere", "train.files", ""),
        ("train.files", "x" * 300, "train.files", ""),
        ("train.nproc", "0", "train.nproc", "1"),
        ("train", "{command: [python], backend: wan, nproc: 2}", "train.nproc", "`backend`"),
        ("train.scheme", "'diloco:every=0'", "train.scheme", "1"),
        ("train.scheme", "hop", "train.scheme", "gradients"),
        ("train.environment", "{PET_NNODES: '1'}", "train.environment.PET_NNODES", ""),
        ("train.rounds", "3", "train.rounds", "backend, command"),
        ("sync", "{strategy: gradients}", "sync", ""),
        ("compute", "{step_time: 1s}", "compute", ""),
        ("events", "[{round: 2, down: [paris, london]}]", "events.0.round", "at: 30s"),
        ("events", "[{at: 1s, kill: paris-w0}]", "events.0.kill", ""),
    ],
)
def test_what_cannot_be_is_said(key: str, value: str, field: str, remedy: str) -> None:
    with pytest.raises(SpecError) as error:
        Experiment.load(DDP, {key: value})
    assert any(fault.field.startswith(field) and remedy in fault.remedy for fault in error.value.faults), error.value
