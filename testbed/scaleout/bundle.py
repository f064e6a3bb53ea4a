"""Folders as bytes: the files of an experiment on their way to a host, and a run's directory on its way back.

A run's directory appears whole under its name, or not at all.
"""

from __future__ import annotations

import io
import os
import shutil
import tarfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from testbed.run.directory import give_back
from testbed.spec.experiment import Experiment

#: The end of a folder's name until all is in it.
UNFINISHED = ".incoming"


@dataclass(frozen=True)
class Bundle:
    """An archive of files that lie below one folder, and which of them is the experiment's."""

    archive: bytes
    experiment: str

    @classmethod
    def of(cls, experiment: Experiment) -> Bundle:
        """All that an experiment's file names, in the places that it names it by."""
        found = [each.resolve() for each in _files(experiment)]
        root = Path(os.path.commonpath([each.parent for each in found]))
        return cls(_packed(root, found), str(experiment.file.resolve().relative_to(root)))

    def unpack(self, folder: Path) -> Path:
        """Put the files there; the experiment's."""
        _unpack(self.archive, folder)
        return folder / self.experiment


def _files(experiment: Experiment) -> Iterator[Path]:
    yield from experiment.files
    if (program := experiment.spec.program) is not None:
        folder = experiment.file.parent
        yield from (each for each in (folder / program.files).rglob("*") if each.is_file())
        if (image := program.image_from(folder)) and Path(image).is_file():
            yield Path(image)


def pack_run(directory: Path) -> bytes:
    """A run's directory."""
    return _packed(directory, (each for each in directory.rglob("*") if each.is_file()))


def unpack_run(archive: bytes, root: Path, name: str) -> Path:
    """The directory of a run that was made elsewhere, now below `root`, which is made where it is not there; `latest`
    points to it. FileExistsError where there is a run of this name."""
    directory, fresh = root / name, root / f".{name}{UNFINISHED}"
    if directory.exists():
        raise FileExistsError(f"{directory} is there already")
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir(parents=True)
    try:
        _unpack(archive, fresh)
        give_back([root, fresh, *fresh.rglob("*")])
        fresh.rename(directory)
    except BaseException:
        shutil.rmtree(fresh, ignore_errors=True)
        raise
    link = root / f".{name}.latest"
    link.symlink_to(name)
    link.replace(root / "latest")
    give_back([root / "latest"])
    return directory


def _packed(root: Path, files: Iterable[Path]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz", compresslevel=1, dereference=True) as archive:
        for each in sorted(set(files)):
            archive.add(each, str(each.relative_to(root)), recursive=False)
    return buffer.getvalue()


def _unpack(archive: bytes, folder: Path) -> None:
    """Files alone, below the folder. ValueError for an archive with anything else: it came over a network."""
    with tarfile.open(fileobj=io.BytesIO(archive)) as opened:
        for member in opened:
            file = folder / member.name
            content = opened.extractfile(member)
            if content is None or not member.isreg() or ".." in file.parts or not file.is_relative_to(folder):
                raise ValueError(f"{member.name} in the archive is no file below its folder")
            file.parent.mkdir(parents=True, exist_ok=True)
            with file.open("wb") as written:
                shutil.copyfileobj(content, written)
            file.chmod(0o755 if member.mode & 0o100 else 0o644)
