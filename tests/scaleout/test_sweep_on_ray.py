"""Runs over a cluster whose hosts are lost, and the archives of experiments and run directories on their way."""

from __future__ import annotations

import io
import json
import os
import tarfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from testbed.run.errors import CannotRun
from testbed.run.execute import Executed
from testbed.run.sweep.planned_run import PlannedRun, Point, hash_of
from testbed.scaleout import sweep_on_ray
from testbed.scaleout.sweep_on_ray import MOST_LOSSES, Bundle, MadeRun, OnRay, pack_run, unpack_run
from testbed.spec.errors import SpecError
from testbed.spec.experiment import Experiment
from testbed.starts import new_scheme
from tests.simulation import experiments

ADDRESSES = {"a": "10.0.0.1", "b": "10.0.0.2", "c": "10.0.0.3"}


class RayError(Exception):
    """The error of a task that is lost with its process or host."""


class PretendedRay:
    """Ray as `OnRay` uses it. At each look, `looks` says which tasks end by then; all tasks of later looks succeed.

    A host's value in a look is "gone" (Ray knows that the host is lost), "broken" (the task has failed, and Ray does
    not know why yet), or "busy". A task of any other host succeeds.
    """

    exceptions = SimpleNamespace(RayTaskError=KeyError, RayError=RayError)

    def __init__(self, archive: bytes, *looks: dict[str, str]) -> None:
        self.hosts = dict(ADDRESSES)
        self.cancelled: list[str] = []
        self._archive = archive
        self._looks = list(looks)
        self._begun = 0
        self._broken: set[str] = set()

    def remote(self, **_: Any) -> Any:
        return lambda _: SimpleNamespace(options=self._options)

    def _options(self, resources: dict[str, float]) -> Any:
        (host,) = (name.removeprefix("host:") for name in resources if name.startswith("host:"))

        def begin(*_: Any) -> str:
            self._begun += 1
            return f"{host} {self._begun}"

        return SimpleNamespace(remote=begin)

    def nodes(self) -> list[dict[str, Any]]:
        return [
            {"Alive": True, "Resources": {f"host:{name}": 1}, "NodeManagerAddress": address}
            for name, address in self.hosts.items()
        ]

    def wait(self, tasks: Sequence[str], timeout: float) -> tuple[list[str], list[str]]:
        look = self._looks.pop(0) if self._looks else {}
        for host in [host for host, state in look.items() if state == "gone"]:
            del self.hosts[host]
        self._broken = {host for host, state in look.items() if state == "broken"}
        done = [task for task in tasks if look.get(task.split()[0]) not in ("gone", "busy")]
        return done, [task for task in tasks if task not in done]

    def get(self, task: str) -> MadeRun:
        host = task.split()[0]
        if host in self._broken:
            raise RayError("the worker died\nsee its log")
        return MadeRun(host, 0, "", f"net-{task.replace(' ', '-')}", self._archive)

    def cancel(self, task: str) -> None:
        self.cancelled.append(task)


class Heard:
    """A watcher that keeps what it is told."""

    def __init__(self) -> None:
        self.lost_runs: list[tuple[str, PlannedRun | None]] = []

    def begin(self, run: PlannedRun) -> None:
        pass

    def end(self, run: PlannedRun, executed: Executed) -> None:
        pass

    def lost(self, reason: str, run: PlannedRun | None) -> None:
        self.lost_runs.append((reason, run))


RUNS = [PlannedRun(Point({"scale": "1"}, {}, "hash"), seed) for seed in (1, 2, 3)]


def made_by(
    folder: Path, monkeypatch: pytest.MonkeyPatch, heard: Heard, *looks: dict[str, str]
) -> tuple[dict[int, str], PretendedRay]:
    """Make RUNS on three hosts, and return the host that made each, by the run's seed."""
    run = folder / "scratch"
    run.mkdir()
    (run / "manifest.json").write_text("{}")
    (run / "summary.json").write_text(json.dumps({"verdict": "trusted", "training": {"wall_seconds": 1.0}}))
    ray = PretendedRay(pack_run(run), *looks)

    @contextmanager
    def connected() -> Iterator[PretendedRay]:
        yield ray

    monkeypatch.setattr(sweep_on_ray, "connected", connected)
    monkeypatch.setattr(sweep_on_ray, "LOOK_S", 0.0)
    file, made = experiments.write(folder), dict[int, str]()
    for planned, executed in OnRay(False, folder / "runs")(file, RUNS, heard):
        made[planned.seed] = json.loads((executed.directory / "manifest.json").read_text())["made_on"]
    return made, ray


@pytest.mark.local
def test_each_run_is_made_once_where_no_host_is_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made, _ = made_by(tmp_path, monkeypatch, heard := Heard())
    assert made == {1: "a", 2: "b", 3: "c"}
    assert heard.lost_runs == []


@pytest.mark.local
def test_each_host_that_is_lost_is_named_with_what_becomes_of_its_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One host is lost with its run, one before it has begun its run, and one after it has lost and told it."""
    looks = ({"a": "busy", "b": "broken", "c": "gone"}, {"a": "busy", "b": "gone"})
    made, ray = made_by(tmp_path, monkeypatch, heard := Heard(), *looks)
    assert made == {1: "a", 2: "a", 3: "a"}
    told = [(reason.split(":")[0], run) for reason, run in heard.lost_runs]
    assert told == [
        ("host b (10.0.0.2) broke off", RUNS[1]),
        ("host c (10.0.0.3) is lost", RUNS[2]),
        ("host b (10.0.0.2) is lost", None),
    ]
    assert ray.cancelled == ["b 2", "c 3"]


@pytest.mark.local
def test_a_host_whose_run_broke_off_gets_no_other_until_ray_would_know_of_its_loss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, _ = made_by(tmp_path, monkeypatch, Heard(), {"a": "busy", "b": "broken", "c": "busy"})
    assert set(made.values()) == {"a", "c"}


@pytest.mark.local
def test_a_sweep_ends_where_no_host_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CannotRun, match="doctor"):
        made_by(tmp_path, monkeypatch, heard := Heard(), dict.fromkeys("abc", "gone"))
    assert [run.seed for _, run in heard.lost_runs if run is not None] == [1, 2, 3]


@pytest.mark.pure
@pytest.mark.parametrize(
    ("train", "refused"),
    [
        ({"command": ["python", "train.py"]}, True),
        ({"scheme": "./mine.py"}, True),
        ({"command": ["python", "/opt/train.py"]}, False),
    ],
)
def test_a_command_on_the_host_that_needs_the_current_folder_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, train: dict[str, Any], refused: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sweep_on_ray, "connected", Mock(side_effect=CannotRun("no cluster is up")))
    (tmp_path / "train.py").write_text("")
    new_scheme("mine", tmp_path)
    experiments.write(tmp_path)
    spec = {"name": "e", "topology": "net.yaml", "train": {"command": ["python"], "on_host": True, **train}}
    file = tmp_path / "program.yaml"
    file.write_text(json.dumps(spec))
    with pytest.raises(SpecError if refused else CannotRun) as caught:
        next(OnRay(False)(file, RUNS, Heard()))
    if isinstance(caught.value, SpecError):
        assert caught.value.fields == ("train.on_host",)


@pytest.mark.local
def test_a_run_that_is_lost_too_often_ends_the_sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweep_on_ray, "REST_S", 0.0)
    looks = [{"a": "broken", "b": "busy", "c": "busy"}] * MOST_LOSSES
    with pytest.raises(CannotRun, match=f"{MOST_LOSSES} times"):
        made_by(tmp_path, monkeypatch, Heard(), *looks)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(each.relative_to(folder)): each.read_bytes() for each in folder.rglob("*") if each.is_file()}


@pytest.mark.pure
def test_an_experiment_is_the_same_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    experiments.write(tmp_path / "here")
    experiment = Experiment.load(tmp_path / "here" / "experiment.yaml", {})
    file = Bundle.of(experiment, {}).unpack(tmp_path / "there")
    assert hash_of(Experiment.load(file, {})) == hash_of(experiment)


@pytest.mark.pure
@pytest.mark.parametrize("image", ["../image", "../image/Dockerfile", "requirements.txt"])
def test_links_and_all_files_of_an_image_travel_with_a_program(tmp_path: Path, image: str) -> None:
    texts = {
        "exp/t.yaml": "{name: t, sites: {a: {workers: 1}, b: {workers: 1}},"
        " links: [{between: [a, b], rate: 1mbit, delay: 1ms}]}",
        "exp/e.yaml": "{name: e, topology: t.yaml, train: {command: [python, train.py], files: src, image: "
        + image
        + "}}",
        "exp/src/versions/two.py": "print(2)",
        "exp/requirements.txt": "-r more.txt\n./project\n",
        "exp/more.txt": "numpy\n",
        "exp/project/pyproject.toml": "[project]\nname = 'x'\n",
        "image/Dockerfile": "FROM scratch\nCOPY lib.py /\n",
        "image/lib.py": "",
    }
    for name, text in texts.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "exp/src/train.py").symlink_to("versions/two.py")
    there = Bundle.of(Experiment.load(tmp_path / "exp/e.yaml"), {}).unpack(tmp_path / "there")
    wanted = ["src/train.py", "src/versions/two.py", "t.yaml"]
    of_image = ["more.txt", "project/pyproject.toml", "requirements.txt"]
    wanted += of_image if image == "requirements.txt" else ["../image/Dockerfile", "../image/lib.py"]
    for name in wanted:
        assert (there.parent / name).read_text() == (tmp_path / "exp" / name).read_text(), name


@pytest.mark.pure
def test_runs_made_so_far_do_not_travel_except_files_that_the_command_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = {
        "t.yaml": "{name: t, sites: {a: {workers: 1}, b: {workers: 1}},"
        " links: [{between: [a, b], rate: 1mbit, delay: 1ms}]}",
        "e.yaml": "{name: e, topology: t.yaml, train: {command: [python, train.py, runs/e-1/out/model.pt]}}",
        "train.py": "",
        "runs/e-1/out/model.pt": "",
        "runs/e-1/links.jsonl": "",
    }
    for name, text in texts.items():
        (tmp_path / "here" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "here" / name).write_text(text)
    monkeypatch.chdir(tmp_path / "here")
    Bundle.of(Experiment.load(Path("e.yaml"), {}), {}).unpack(tmp_path / "there")
    assert contents(tmp_path / "there").keys() == texts.keys() - {"runs/e-1/links.jsonl"}


@pytest.mark.pure
def test_a_policy_s_file_of_the_command_line_is_found_on_the_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "exp").mkdir()
    experiments.write(tmp_path / "exp")
    (tmp_path / "mine.py").write_text("")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sweep_on_ray, "FILES", tmp_path / "there")
    overrides = {"sync.policy": "./mine.py", "train.rounds": "3"}
    bundle = Bundle.of(Experiment.load(tmp_path / "exp/experiment.yaml", overrides), overrides)
    file = bundle.unpack(tmp_path / "there")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    there = Experiment.load(file, bundle.overrides)
    assert Path(there.spec.sync.policy) == tmp_path / "there/mine.py"
    assert Path(there.spec.sync.policy).exists()
    assert there.spec.own_train.rounds == 3


@pytest.mark.pure
def test_a_run_comes_back_whole(tmp_path: Path) -> None:
    run = tmp_path / "scratch" / "pair-1"
    (run / "logs").mkdir(parents=True)
    (run / "summary.json").write_text("{}")
    (run / "logs" / "w0.log").write_bytes(os.urandom(10_000))
    back = unpack_run(pack_run(run), tmp_path / "runs", "pair-1")
    assert contents(back) == contents(run)
    assert (tmp_path / "runs" / "latest").resolve() == back.resolve()


@pytest.mark.pure
def test_a_run_that_is_here_is_not_written_over(tmp_path: Path) -> None:
    run = tmp_path / "scratch" / "pair-1"
    run.mkdir(parents=True)
    (run / "summary.json").write_text("{}")
    archive = pack_run(run)
    unpack_run(archive, tmp_path / "runs", "pair-1")
    with pytest.raises(FileExistsError):
        unpack_run(archive, tmp_path / "runs", "pair-1")


@pytest.mark.pure
@pytest.mark.parametrize("share", [0.2, 0.5, 0.9])
def test_what_breaks_off_on_its_way_leaves_nothing(tmp_path: Path, share: float) -> None:
    run = tmp_path / "scratch" / "pair-1"
    run.mkdir(parents=True)
    (run / "views.jsonl").write_bytes(os.urandom(100_000))
    archive = pack_run(run)
    with pytest.raises((tarfile.TarError, EOFError, OSError)):
        unpack_run(archive[: int(len(archive) * share)], tmp_path / "runs", "pair-1")
    assert list((tmp_path / "runs").iterdir()) == []


def archive_of(member: tarfile.TarInfo) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        archive.addfile(member, io.BytesIO(b"x" * member.size))
    return buffer.getvalue()


@pytest.mark.pure
@pytest.mark.parametrize(
    ("name", "kind", "target"),
    [
        ("../outside", tarfile.REGTYPE, ""),
        ("logs/../../outside", tarfile.REGTYPE, ""),
        ("/tmp/outside", tarfile.REGTYPE, ""),
        ("link", tarfile.SYMTYPE, "/etc/passwd"),
        ("link", tarfile.LNKTYPE, "/etc/passwd"),
        ("device", tarfile.CHRTYPE, ""),
    ],
)
def test_an_archive_holds_files_below_its_folder_alone(tmp_path: Path, name: str, kind: bytes, target: str) -> None:
    member = tarfile.TarInfo(name)
    member.type, member.linkname, member.size = kind, target, 1 if kind == tarfile.REGTYPE else 0
    with pytest.raises((ValueError, KeyError)):
        unpack_run(archive_of(member), tmp_path / "runs", "pair-1")
    assert list(tmp_path.rglob("*")) == [tmp_path / "runs"]
