"""Archives of experiments and run directories: unpacked whole, at their place, and nothing else."""

from __future__ import annotations

import io
import os
import tarfile
from pathlib import Path

import pytest

from testbed.run.sweep.planned_run import hash_of
from testbed.scaleout.sweep_on_ray import Bundle, pack_run, unpack_run
from testbed.spec.experiment import Experiment
from tests.simulation import experiments

pytestmark = pytest.mark.pure


def contents(folder: Path) -> dict[str, bytes]:
    return {str(each.relative_to(folder)): each.read_bytes() for each in folder.rglob("*") if each.is_file()}


def test_an_experiment_is_the_same_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    experiments.write(tmp_path / "here")
    experiment = Experiment.load(tmp_path / "here" / "experiment.yaml", {})
    file = Bundle.of(experiment).unpack(tmp_path / "there")
    assert hash_of(Experiment.load(file, {})) == hash_of(experiment)


def test_a_run_comes_back_whole(tmp_path: Path) -> None:
    run = tmp_path / "scratch" / "pair-1"
    (run / "logs").mkdir(parents=True)
    (run / "summary.json").write_text("{}")
    (run / "logs" / "w0.log").write_bytes(os.urandom(10_000))
    back = unpack_run(pack_run(run), tmp_path / "runs", "pair-1")
    assert contents(back) == contents(run)
    assert (tmp_path / "runs" / "latest").resolve() == back.resolve()


def test_a_run_that_is_here_is_not_written_over(tmp_path: Path) -> None:
    run = tmp_path / "scratch" / "pair-1"
    run.mkdir(parents=True)
    (run / "summary.json").write_text("{}")
    archive = pack_run(run)
    unpack_run(archive, tmp_path / "runs", "pair-1")
    with pytest.raises(FileExistsError):
        unpack_run(archive, tmp_path / "runs", "pair-1")


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
