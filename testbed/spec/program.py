"""What an experiment trains where that is not ours: a command on its workers, and what surrounds it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from testbed.schemes.choice import SchemeChoice
from testbed.spec.errors import Fault
from testbed.spec.load import Strict
from testbed.spec.scratch import OUT_BYTES, SHM_BYTES, TMP_BYTES
from testbed.spec.topology import Topology
from testbed.spec.units import Size

Words = Annotated[list[Annotated[str, Field(min_length=1)]], Field(min_length=1)]

#: What has these names is the launch's to say.
OWN = ("TESTBED_", "PET_")


def is_path(image: str) -> bool:
    """Return whether an image is meant as a path, which no image's name begins as: `.`, `./Dockerfile`, `/a/b`."""
    return image.startswith((".", "/"))


def holds(asked: Callable[[], bool]) -> bool:
    """What a path says of itself. A word that is longer than a file's name may be is none."""
    try:
        return asked()
    except OSError:
        return False


class ProgramSection(Strict):
    """A command that trains on every worker, or one for each by its name. It ends the run when it ends on all of them.

    Relative paths are from the experiment's folder. `files` is what containers see as /work; `image` one that the
    engine has, a Dockerfile or a requirements file; `tmp`, `shm` and `out` the room in /tmp, /dev/shm and /out. With a
    `backend`, a script that says gloo gets that one; with a `scheme`, such as diloco:every=32, that is around its
    optimizer's steps.
    """

    command: Words | dict[str, Words]
    files: str = "."
    image: str | None = None
    nproc: int = Field(default=1, ge=1, le=1024)
    backend: Literal["wan"] | None = None
    scheme: str | None = None
    environment: dict[str, str] = Field(default_factory=dict)
    tmp: Size = TMP_BYTES
    shm: Size = SHM_BYTES
    out: Size = OUT_BYTES

    @property
    def planned(self) -> dict[str, str]:
        """The variables that have its processes go by a controller's plans; empty where none does."""
        named = {"TESTBED_BACKEND": self.backend, "TESTBED_SCHEME": self.scheme}
        return {name: value for name, value in named.items() if value}

    def commands(self, topology: Topology) -> Mapping[str, Sequence[str]]:
        """The command of each worker that has one."""
        if isinstance(self.command, dict):
            return self.command
        return {worker.name: self.command for worker in topology.workers}

    def image_from(self, folder: Path) -> str | None:
        """The image, the path of a file or folder from this folder on."""
        if self.image is not None and is_path(self.image):
            return str((folder / self.image).resolve())
        if self.image is not None and holds((folder / self.image).is_file):
            return str(folder / self.image)
        return self.image

    def check(self, topology: Topology, folder: Path) -> list[Fault]:
        """What of it can't be."""
        faults = []
        workers = [worker.name for worker in topology.workers]
        for name in self.command if isinstance(self.command, dict) else ():
            if name not in workers:
                rule = f"no worker {name!r} is in {topology.file}"
                faults.append(Fault(f"train.command.{name}", rule, f"some of {', '.join(workers[:12])}"))
        if self.planned and self.nproc > 1:
            rule = f"{self.nproc} processes on each worker, and a backend or a scheme is for one"
            faults.append(Fault("train.nproc", rule, "1, or no `backend` or `scheme`"))
        if self.backend and self.scheme:
            faults.append(Fault("train.scheme", "stands beside a backend", "one of the two"))
        try:
            SchemeChoice.parse(self.scheme or "gradients")
        except ValueError as error:
            rule, _, remedy = str(error).partition("; write instead: ")
            faults.append(Fault("train.scheme", rule, remedy or "NAME:OPTION=VALUE, such as diloco:every=32"))
        if not holds((folder / self.files).is_dir):
            faults.append(Fault("train.files", f"{folder / self.files} is no folder", "one that is there"))
        for name in self.environment:
            if name.startswith(OWN) or "=" in name or not name:
                faults.append(Fault(f"train.environment.{name}", "is not to be set here", "another name"))
        return faults
