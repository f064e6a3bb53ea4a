"""A program that trains in an experiment: a command for its workers, and the settings of the command's containers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from testbed.schemes import is_file
from testbed.schemes.choice import SchemeChoice
from testbed.spec.errors import Fault
from testbed.spec.load import holds
from testbed.spec.model import Strict
from testbed.spec.topology import Topology
from testbed.spec.units import OUT_BYTES, SHM_BYTES, TMP_BYTES, Size

Words = Annotated[list[Annotated[str, Field(min_length=1)]], Field(min_length=1)]


def _begins(command: list[str]) -> list[str]:
    if not command[0]:
        raise ValueError("its first word is empty | the program to start, then its arguments")
    return command


Command = Annotated[list[str], Field(min_length=1), AfterValidator(_begins)]

#: The prefixes of environment variables that the launch itself sets.
OWN = ("TESTBED_", "PET_")
#: The fields about containers, of which a program on the host has none.
CONTAINER_FIELDS = ("files", "image", "renew_image", "tmp", "shm", "out")


def is_path(image: str) -> bool:
    """Return whether an image is written as a path: `.`, `./Dockerfile`, `/a/b`. No image's name begins like these."""
    return image.startswith((".", "/"))


class ProgramSection(Strict):
    """Training by a command of your own. The run ends when the command ends on all workers.

    Relative paths begin in the experiment's folder.
    """

    command: Command | Annotated[dict[str, Command], Field(min_length=1)]
    """The command and its arguments, as a list; or worker → command, which then runs on these workers alone."""
    workers: Words | None = None
    """The workers that run the command, in the order of their ranks; by default all workers."""
    on_host: bool = False
    """Run a program of this machine in each worker's network namespace, instead of in a container."""
    files: str = "."
    """The folder that containers see as /work; by default the experiment's."""
    image: str | None = None
    """A local container image, a Dockerfile or its folder, or a requirements file; by default the worker image."""
    renew_image: bool = False
    """Build the image of the Dockerfile or requirements file again, with the newest packages."""
    nproc: int = Field(default=1, ge=1, le=1024)
    """The number of processes on each worker."""
    backend: Literal["wan"] | None = None
    """The backend of torch.distributed that replaces gloo in a script; by default gloo stays."""
    scheme: str | None = Field(default=None, min_length=1)
    """The scheme around the steps of the script's optimizer, such as diloco:every=32. The path of a scheme's file
    is relative to /work, or with `on_host` to the current folder."""
    environment: dict[str, str] = Field(default_factory=dict)
    """Environment variables of the command: name → value."""
    tmp: Size = TMP_BYTES
    """The size of /tmp in the container, such as `64MiB`."""
    shm: Size = SHM_BYTES
    """The size of /dev/shm in the container, such as `64MiB`."""
    out: Size = OUT_BYTES
    """The size of /out in the container, such as `256MiB`; the run keeps the files in it."""

    @property
    def planned(self) -> dict[str, str]:
        """The environment variables that make the processes follow a controller's plans; empty if they follow none."""
        named = {"TESTBED_BACKEND": self.backend, "TESTBED_SCHEME": self.scheme}
        return {name: value for name, value in named.items() if value}

    def codec(self, folder: Path) -> str:
        """Return the codec of the processes' rounds, which their scheme sets. `folder` is the experiment's.

        ValueError: `scheme` names no scheme.
        """
        return self._choice(folder).scheme.codec

    def scheme_file(self, folder: Path) -> Path | None:
        """Return the scheme's file, or None if `scheme` names no file. `folder` is the experiment's."""
        name, _, _ = (self.scheme or "").partition(":")
        return self._start(folder) / name if is_file(name) else None

    def _start(self, folder: Path) -> Path:
        """Return the folder of this machine in which the command starts: workers look up a scheme's file there."""
        return Path() if self.on_host else folder / self.files

    def _choice(self, folder: Path) -> SchemeChoice:
        return SchemeChoice.parse(self.scheme or "gradients", self._start(folder))

    def commands(self, topology: Topology) -> Mapping[str, Sequence[str]]:
        """Return worker → command in the order of ranks, for each worker that has a command."""
        names = [worker.name for worker in topology.workers]
        if isinstance(self.command, dict):
            return {name: self.command[name] for name in names if name in self.command}
        return dict.fromkeys(self.workers or names, self.command)

    def image_from(self, folder: Path) -> str | None:
        """Return the image; if it is a file or folder, its path joined to `folder`."""
        if self.image is not None and is_path(self.image):
            return str((folder / self.image).resolve())
        if self.image is not None and holds((folder / self.image).is_file):
            return str(folder / self.image)
        return self.image

    def check(self, topology: Topology, folder: Path) -> Iterator[Fault]:
        """Yield a fault for each field that does not fit the network, the folder or another field."""
        workers = [worker.name for worker in topology.workers]
        given = [(f"train.command.{name}", name) for name in self.command] if isinstance(self.command, dict) else []
        given += [("train.workers", name) for name in self.workers or ()]
        for field, name in given:
            if name not in workers:
                yield Fault(field, f"{topology.file} has no worker {name!r}", f"some of {', '.join(workers[:12])}")
        if self.workers and (twice := next((name for name in self.workers if self.workers.count(name) > 1), None)):
            remedy = "each worker once; `nproc: 2` starts two processes on each"
            yield Fault("train.workers", f"{twice} is named twice", remedy)
        if self.workers and isinstance(self.command, dict):
            rule = "`command` already names its workers"
            yield Fault("train.workers", rule, "nothing, or one command for all of them")
        if self.renew_image and self.image is None:
            remedy = "a Dockerfile or requirements file as `image`; `make update` renews the worker image"
            yield Fault("train.renew_image", "there is no image to build again", remedy)
        for name in CONTAINER_FIELDS if self.on_host else ():
            if getattr(self, name) != ProgramSection.model_fields[name].default:
                rule = "the field has no effect beside `on_host`, which starts no container"
                yield Fault(f"train.{name}", rule, "nothing, or no `on_host`")
        if self.planned and self.nproc > 1:
            rule = f"each worker runs {self.nproc} processes, and a backend or a scheme takes one"
            yield Fault("train.nproc", rule, "1, or no `backend` or `scheme`")
        if self.backend and self.scheme:
            yield Fault("train.scheme", "a scheme and a backend exclude each other", "one of the two")
        try:
            self._choice(folder)
        except ValueError as error:
            rule, _, remedy = str(error).partition("; write instead: ")
            yield Fault("train.scheme", rule, remedy or "NAME:OPTION=VALUE, such as diloco:every=32")
        if not holds((folder / self.files).is_dir):
            yield Fault("train.files", f"{folder / self.files} is not a folder", "a folder that exists")
        texts = [("train.command", word) for words in self.commands(topology).values() for word in words]
        texts += [(f"train.environment.{name}", value) for name, value in self.environment.items()]
        for field in sorted({field for field, text in texts if "\0" in text}):
            yield Fault(field, "the kernel passes no NUL to a program", "the text without `\\0`")
        for name in self.environment:
            if name.startswith(OWN) or "=" in name or "\0" in name or not name:
                rule = "no variable has such a name" if not name.startswith(OWN) else "the launch sets this variable"
                yield Fault(f"train.environment.{name}", rule, "another name")
