"""Experiments that train by a command."""

from __future__ import annotations

from pathlib import Path

import pytest

from testbed.spec.errors import SpecError
from testbed.spec.experiment import Experiment
from testbed.starts import new_scheme

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
    overrides = {"train.command": '{paris-w0: [iperf3, ""], london-w0: [iperf3, -c, x]}', "train.image": "iperf3:1"}
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
        ("train.command", '["", a]', "train.command", "the program to start"),
        ("train.command", "{}", "train.command", ""),
        ("train.command", "{rome-w0: [a]}", "train.command.rome-w0", "paris-w0"),
        ("train.files", "nowhere", "train.files", ""),
        ("train.files", "x" * 300, "train.files", ""),
        ("train.nproc", "0", "train.nproc", "1"),
        ("train.workers", "[rome-w0]", "train.workers", "paris-w0"),
        ("train.workers", "[paris-w0, london-w0, paris-w0]", "train.workers", "nproc"),
        ("train", "{command: {paris-w0: [a]}, workers: [paris-w0]}", "train.workers", "one command"),
        ("train.renew_image", "true", "train.renew_image", "Dockerfile"),
        ("train.on_host", "true", "train.files", "`on_host`"),
        ("train", "{command: [a], on_host: true, image: mine:1}", "train.image", "`on_host`"),
        ("train", "{command: [a], on_host: true, shm: 1MiB}", "train.shm", "`on_host`"),
        ("train", "{command: [a], backend: wan, scheme: diloco}", "train.scheme", "one of the two"),
        ("train", "{command: [python], backend: wan, nproc: 2}", "train.nproc", "`backend`"),
        ("train.scheme", "'diloco:every=0'", "train.scheme", "1"),
        ("train.scheme", "hop", "train.scheme", "gradients"),
        ("train.scheme", "''", "train.scheme", ""),
        ("train.environment", "{PET_NNODES: '1'}", "train.environment.PET_NNODES", ""),
        ("train.environment", '{A: "x\\0"}', "train.environment.A", "without"),
        ("train.environment", '{"x\\0": a}', "train.environment.x", "another name"),
        ("train.command", '[echo, "a\\0b"]', "train.command", "without"),
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


def test_the_workers_of_a_command_are_in_the_order_of_their_ranks() -> None:
    chosen = Experiment.load(DDP, {"train.workers": "[madrid-w0, paris-w0]"})
    each = Experiment.load(DDP, {"train.command": "{madrid-w0: [a], paris-w0: [b]}"})
    for experiment, names in ((chosen, ["madrid-w0", "paris-w0"]), (each, ["paris-w0", "madrid-w0"])):
        assert experiment.spec.program is not None
        assert list(experiment.spec.program.commands(experiment.topology)) == names


def test_a_program_trains_on_a_network_without_a_file_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    topology = Experiment.load(DDP).topology
    (tmp_path / "requirements.txt").touch()
    experiment = Experiment.of_program(topology, {"command": ["python", "x.py"], "image": "requirements.txt"}, "mine")
    program = experiment.spec.program
    assert program is not None
    assert (experiment.name, experiment.topology) == ("mine", topology)
    assert (program.files, program.image) == (str(tmp_path), str(tmp_path / "requirements.txt"))
    assert program.image_from(experiment.file.parent) == str(tmp_path / "requirements.txt")
    with pytest.raises(SpecError) as error:
        Experiment.of_program(topology, {"command": [], "nproc": 0})
    assert set(error.value.fields) == {"train.command", "train.nproc"}


@pytest.mark.parametrize(
    ("scheme", "backend", "variables"),
    [
        (None, None, {}),
        (None, "wan", {"TESTBED_BACKEND": "wan"}),
        ("local_sgd:every=4", None, {"TESTBED_SCHEME": "local_sgd:every=4"}),
    ],
)
def test_a_backend_or_a_scheme_is_told_to_processes(
    scheme: str | None, backend: str | None, variables: dict[str, str]
) -> None:
    train = {"command": ["python"], "scheme": scheme, "backend": backend}
    program = Experiment.of_program(Experiment.load(DDP).topology, train).spec.program
    assert program is not None
    assert program.planned == variables


@pytest.mark.parametrize(
    ("train", "codec"),
    [
        ({"scheme": "muloco:every=8"}, "bins2"),
        ({"scheme": "sparseloco"}, "sparse"),
        ({"scheme": "diloco"}, "fp32"),
        ({"backend": "wan"}, "fp32"),
    ],
)
def test_rounds_have_the_scheme_s_codec(train: dict[str, str], codec: str, tmp_path: Path) -> None:
    program = Experiment.of_program(Experiment.load(DDP).topology, {"command": ["python"], **train}).spec.program
    assert program is not None and program.codec(tmp_path) == codec


def test_a_scheme_s_file_begins_where_the_command_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a container that is the folder of its files, and on the host the current one."""
    files, here = tmp_path / "files", tmp_path / "here"
    for folder in (files, here):
        folder.mkdir()
    monkeypatch.chdir(here)
    new_scheme("in_files", files)
    new_scheme("in_here", here)
    topology = Experiment.load(DDP).topology
    contained: dict[str, object] = {"files": str(files)}
    on_host: dict[str, object] = {"on_host": True}
    for name, fitting, other in (("in_files", contained, on_host), ("in_here", on_host, contained)):
        train = {"command": ["python"], "scheme": f"./{name}.py:every=2"}
        program = Experiment.of_program(topology, {**train, **fitting}).spec.program
        assert program is not None and program.planned == {"TESTBED_SCHEME": f"./{name}.py:every=2"}
        with pytest.raises(SpecError) as error:
            Experiment.of_program(topology, {**train, **other})
        assert error.value.fields == ("train.scheme",)
    assert Experiment.load(DDP, {"train.files": str(files), "train.scheme": "./in_files.py"}).spec.program
