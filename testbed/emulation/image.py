"""The worker image, made on this machine without an image registry.

Three images stand on one another, each tagged with a hash of what it is made of:

    testbed-base    Debian with Python, made by mmdebstrap           changes with containers/base.sh
    testbed-torch   + torch, from wheels that pip on the host got    changes with the pins of the `sync` extra
    testbed-worker  + data, user, code                               changes with the code, rebuilt in 2 s

BASE_IMAGE in the environment names another base: any image with a `python3`. A torch that is in it (one with
CUDA, say) is used instead of ours. It has to be named for a run as it was for set-up.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tarfile
import tempfile
import time
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import docker
from docker.errors import APIError, BuildError, ImageNotFound

from testbed.emulation import engine
from testbed.emulation.errors import EmulationError

ROOT = Path(__file__).resolve().parents[2]
CONTAINERS = ROOT / "containers"
BUILD = ROOT / "build"

#: What of the package goes into a worker: the sync library, the worker's program and the values they share.
WORKER_CODE = (
    "__init__.py",
    "atomic_file.py",
    "link.py",
    "plan.py",
    "protocol.py",
    "workload.py",
    "schemes/**/*.py",
    "sync/**/*.py",
    "worker/**/*.py",
)

#: Which image it is, on every image made here; only what carries it is ever removed.
KIND_LABEL = "testbed.image"
#: The checkout an image was made from, so that two on one machine do not remove each other's.
CHECKOUT_LABEL = "testbed.checkout"

#: What of a failed command's output is quoted.
OUTPUT_TAIL_LINES = 15

#: Asks a base which Python it has, and whether torch is there already.
PROBE = (
    "import importlib.util, json, sys; "
    "print(json.dumps(['%d.%d' % sys.version_info[:2], bool(importlib.util.find_spec('torch'))]))"
)

Progress = Callable[[str], None]


class ImageError(EmulationError):
    """The worker image cannot be made; the text says why and what to do."""


@dataclass(frozen=True, slots=True)
class Tags:
    """The names of the three images for the inputs as they are now."""

    base: str
    torch: str
    worker: str


def ensure_worker_image(client: docker.DockerClient, progress: Progress = print) -> str:
    """The tag of the worker image for the code as it is now; made first, where it is not there yet.

    Raises ImageError when a step fails.
    """
    foreign_base = os.environ.get("BASE_IMAGE")
    tags = _tags(client, foreign_base, progress)
    if exists(client, tags.worker):
        return tags.worker
    if not exists(client, tags.torch):
        if not exists(client, tags.base):
            with told(progress, f"base image {tags.base} with mmdebstrap"):
                import_base(client, "base", tags.base)
        with told(progress, f"torch image {tags.torch}"):
            _make_torch(client, tags)
    with told(progress, f"worker image {tags.worker}"):
        _make_worker(client, tags)
    remove_superseded(client, {"base": tags.base, "torch": tags.torch, "worker": tags.worker, "build": ""})
    return tags.worker


def _tags(client: docker.DockerClient, foreign_base: str | None, progress: Progress) -> Tags:
    if foreign_base is None:
        base = f"testbed-base:{hash_of([hash_of_file(CONTAINERS / 'base.sh')])}"
        base_identity = base
    else:
        base = foreign_base
        base_identity = _foreign_id(client, foreign_base, progress)
    torch_inputs = [base_identity, *packages_of("sync"), hash_of_file(CONTAINERS / "torch.Dockerfile")]
    torch = f"testbed-torch:{hash_of(torch_inputs)}"
    worker_inputs = [torch, hash_of_file(CONTAINERS / "worker.Dockerfile"), hash_of_file(CONTAINERS / "digits.py")]
    code = [part for path in _worker_code() for part in (str(path.relative_to(ROOT)), hash_of_file(path))]
    return Tags(base, torch, f"testbed-worker:{hash_of(worker_inputs + code)}")


def _foreign_id(client: docker.DockerClient, name: str, progress: Progress) -> str:
    try:
        image = client.images.get(name)
    except ImageNotFound:
        try:
            with told(progress, f"{name}, which BASE_IMAGE names, from its registry"):
                image = client.images.pull(name)
        except APIError as error:
            raise ImageError(
                f"BASE_IMAGE names {name}, which is neither on this machine nor to be had: "
                f"{error.explanation}. Name another, or none, and a base is made with mmdebstrap."
            ) from error
    return str(image.id)


def import_base(client: docker.DockerClient, kind: str, tag: str, packages: Sequence[str] = ()) -> None:
    """Make an image of Debian with Python and these packages more. Raises ImageError when mmdebstrap fails."""
    BUILD.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=BUILD) as scratch:
        archive = Path(scratch) / "base.tar"
        _command(
            [str(CONTAINERS / "base.sh"), str(archive), *packages],
            "The base is made of Debian packages: see that this machine reaches a Debian mirror, or set "
            "BASE_IMAGE to an image with Python that the Docker engine has or can pull.",
        )
        repository, _, version = tag.partition(":")
        labels = " ".join(f"{key}={value}" for key, value in _labels(kind).items())
        client.api.import_image_from_file(str(archive), repository=repository, tag=version, changes=[f"LABEL {labels}"])


def _make_torch(client: docker.DockerClient, tags: Tags) -> None:
    python, has_torch = probe_python(client, tags.base)
    packages = [] if has_torch else packages_of("sync")
    arguments = {"BASE": tags.base, "PACKAGES": " ".join(packages), "CHECKOUT": str(ROOT)}
    build_image(client, "torch", tags.torch, wheelhouse(python, packages), arguments)


def probe_python(client: docker.DockerClient, image: str) -> tuple[str, bool]:
    """Which Python an image has (`3.11`), and whether it has torch."""
    found = client.containers.run(image, entrypoint=["python3", "-c", PROBE], network_mode="none", remove=True)
    python, has_torch = json.loads(found)
    return python, has_torch


def wheelhouse(python: str, packages: Sequence[str]) -> dict[str, Path | None]:
    """A build's `wheelhouse/`: these packages for a Python such as `3.11`, all they need, and pip's own wheel.

    Empty when no package is asked for. Raises ImageError when pip on this machine cannot get one.
    """
    entries: dict[str, Path | None] = {"wheelhouse": None}
    if not packages:
        return entries
    # A directory for every set of inputs: one that is left over would bring two versions of a package.
    directory = BUILD / f"wheelhouse-{hash_of([python, *packages])}"
    _command(
        [
            *(sys.executable, "-m", "pip", "download", "--quiet", "--dest", str(directory)),
            *("--only-binary=:all:", f"--python-version={python}", *packages, "pip"),
        ],
        f"pip on this machine must be able to get {' '.join(packages)} for Python {python}: "
        "check its settings (`pip config list`) and the network.",
    )
    return entries | {f"wheelhouse/{wheel.name}": wheel for wheel in sorted(directory.glob("*.whl"))}


def _make_worker(client: docker.DockerClient, tags: Tags) -> None:
    BUILD.mkdir(exist_ok=True)  # the engine may have the images below from another checkout
    digits = BUILD / f"digits-{hash_of([hash_of_file(CONTAINERS / 'digits.py')])}"
    if not digits.exists():
        with tempfile.TemporaryDirectory(dir=BUILD) as scratch:
            baked = Path(scratch) / "digits"
            _command(
                [sys.executable, str(CONTAINERS / "digits.py"), str(baked)],
                "The digits come with scikit-learn: `make setup` installs it.",
            )
            baked.rename(digits)
    entries: dict[str, Path | None] = {f"digits/{path.name}": path for path in sorted(digits.iterdir())}
    entries |= {str(path.relative_to(ROOT)): path for path in _worker_code()}
    build_image(client, "worker", tags.worker, entries, {"RUNTIME": tags.torch})


def build_image(
    client: docker.DockerClient,
    kind: str,
    tag: str,
    entries: Mapping[str, Path | None],
    arguments: Mapping[str, str],
) -> None:
    """Build `containers/KIND.Dockerfile` without a network, out of a context of these entries alone.

    Raises ImageError with the end of its output when it fails.
    """
    with _context({**entries, "Dockerfile": CONTAINERS / f"{kind}.Dockerfile"}) as context:
        try:
            client.images.build(
                fileobj=context,
                custom_context=True,
                tag=tag,
                buildargs=dict(arguments),
                labels=_labels(kind),
                network_mode="none",
                rm=True,
                forcerm=True,
            )
        except BuildError as error:
            output = "".join(line.get("stream", "") for line in error.build_log)
            raise ImageError(f"Building {tag} failed: {error}\n{_tail(output)}") from error
        except APIError as error:
            raise ImageError(f"Building {tag} failed: {error.explanation}") from error


@contextmanager
def _context(entries: Mapping[str, Path | None]) -> Iterator[IO[bytes]]:
    """A tar of files by their names in it; None stands for an empty directory.

    Owners and times are left out, so that the same inputs find the same layers in the engine's cache.
    """
    with tempfile.TemporaryFile(dir=BUILD) as file:
        with tarfile.open(fileobj=file, mode="w") as archive:
            for name, path in entries.items():
                entry = tarfile.TarInfo(name)
                if path is None:
                    entry.type, entry.mode = tarfile.DIRTYPE, 0o755
                    archive.addfile(entry)
                else:
                    entry.size = path.stat().st_size
                    with path.open("rb") as content:
                        archive.addfile(entry, content)
        file.seek(0)
        yield file


def remove_superseded(client: docker.DockerClient, wanted: Mapping[str, str]) -> None:
    """Of each kind, remove what this checkout made before and no longer wants; what a container still uses stays."""
    for image in client.images.list(filters={"label": f"{CHECKOUT_LABEL}={ROOT}"}):
        if wanted.get(image.labels[KIND_LABEL]) in (None, *image.tags):
            continue
        for name in image.tags or [str(image.id)]:
            try:
                client.images.remove(name)
            except APIError as error:
                if error.status_code != 409:  # a container or another image stands on it
                    raise


def _labels(kind: str) -> dict[str, str]:
    return {KIND_LABEL: kind, CHECKOUT_LABEL: str(ROOT)}


def packages_of(extra: str) -> list[str]:
    """What an extra of pyproject.toml pins: `sync` is what a worker needs, `emulate` the rest."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return list(project["optional-dependencies"][extra])


def _worker_code() -> list[Path]:
    package = ROOT / "testbed"
    return sorted(path for pattern in WORKER_CODE for path in package.glob(pattern))


def exists(client: docker.DockerClient, tag: str) -> bool:
    """Whether the engine has an image of this name."""
    try:
        client.images.get(tag)
    except ImageNotFound:
        return False
    return True


def hash_of_file(path: Path) -> str:
    """A digest of what a file holds."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def hash_of(parts: Iterable[str]) -> str:
    """A tag for what is made of these parts."""
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:12]


def _command(arguments: list[str], remedy: str) -> None:
    done = subprocess.run(arguments, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode != 0:
        raise ImageError(f"{arguments[0]} ended with {done.returncode}:\n{_tail(done.stdout)}\n{remedy}")


def _tail(output: str) -> str:
    return "\n".join(f"    {line}" for line in output.splitlines()[-OUTPUT_TAIL_LINES:])


@contextmanager
def told(progress: Progress, what: str) -> Iterator[None]:
    """Say that something is being made, and how long it took."""
    progress(f"making {what}")
    started = time.monotonic()
    yield
    progress(f"made {what} in {time.monotonic() - started:.1f} s")


def main() -> int:
    """`python -m testbed.emulation.image`: see that the worker image is there, and print its tag."""
    try:
        print(ensure_worker_image(engine.connect()))
    except (engine.EngineError, ImageError) as error:
        print(error, file=sys.stderr)
        return 3
    return 0


if __name__ == "__main__":
    sys.exit(main())
