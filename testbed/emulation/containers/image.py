"""The worker image, made on this machine without an image registry.

Three images stand on one another, each tagged with a hash of what it holds:

    testbed-base    Debian with Python, made by mmdebstrap           its packages and their versions
    testbed-torch   + torch and msgspec, from wheels that pip got    + the wheels by their own hashes
    testbed-worker  + data, user, code                               + both, file by file; rebuilt in 2 s

What an image holds is known once it is made, since Debian's mirror and pip's index move on. It is found by a label with
the hash of its recipe: the files of this checkout that say how it is made. So it is made once, stays as it is while
they do, and `make update` makes it of what the mirror has by then. Its labels tell the packages that it holds.

BASE_IMAGE in the environment names another base: any image with a `python3`. A torch that is in it (one with
CUDA, say) is used instead of ours. It has to be named for a run as it was for set-up.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import IO, Any

import docker
from docker.errors import APIError, BuildError, ContainerError, ImageNotFound

from testbed import resources
from testbed.emulation.containers import documentation, engine, requirements
from testbed.emulation.containers.requirements import Locked, LockError, canonical
from testbed.emulation.errors import EmulationError, ending_of
from testbed.emulation.label import LABEL
from testbed.emulation.process import how_it_ended
from testbed.resources import PACKAGE, SETUP
from testbed.telemetry.store import write_json

ROOT = requirements.ROOT
CONTAINERS = ROOT / "containers"
BUILD = resources.BUILD

#: The command that installs the extra with scikit-learn.
INSTALL = SETUP if resources.IS_CHECKOUT else "pip install wan-testbed[emulate]"

#: What of the package goes into a worker: the sync library, the worker's program and the values they share.
WORKER_CODE = (
    "__init__.py",
    "atomic_file.py",
    "errors.py",
    "link.py",
    "plan.py",
    "protocol.py",
    "resources.py",
    "schema.py",
    "scheme_autoload.py",
    "tls.py",
    "unix_socket.py",
    "torch_backend.py",
    "workload.py",
    "schemes/**/*.py",
    "sync/**/*.py",
    "worker/**/*.py",
)

#: Which image it is, on every image made here; only what carries it is ever removed.
KIND_LABEL = "testbed.image"
#: What an engine may list in the place of tags.
NO_TAG = "<none>:<none>"
#: What the engine says where another process removes the layer that a build has just found in the cache. The build is
#: made again then: the cache no longer has that layer.
LAYER_GONE, BUILD_ATTEMPTS = "failed to get digest", 3

#: The checkout an image was made from, so that two on one machine do not remove each other's.
CHECKOUT_LABEL = "testbed.checkout"
#: The hash of what an image is made from, by which it is found.
RECIPE_LABEL = "testbed.recipe"
#: What packages it holds, each `name=version`, by who packed them.
PACKAGES_LABELS = {"debian": "testbed.packages.debian", "python": "testbed.packages.python"}

#: What of a failed command's output is quoted.
OUTPUT_TAIL_LINES = 15

#: pip's reason for a conflict. What follows is advice that is the same for any conflict.
PIP_CONFLICT = re.compile(r"(?ms)^ERROR: Cannot install .*?(?=^Additionally, |^To fix this |\Z)")
#: Options of pip without which it prints more than a reason, or, with --quiet, no reason for a conflict.
PIP_PLAIN = ("--progress-bar=off", "--disable-pip-version-check")

#: Asks a base which Python it has, and what of that which workers and programs need is there already.
PROBE = (
    "import importlib.util, json, sys; "
    "there = [name for name in ('msgspec', 'numpy', 'torch') if importlib.util.find_spec(name)]; "
    "print(json.dumps(['%d.%d' % sys.version_info[:2], there]))"
)

#: Asks an image which packages it has, of Python's (those that its `python3` finds) and of Debian's.
PACKAGES = r"""
import importlib.metadata, json, pathlib, re
python = {each.metadata["Name"]: each.version for each in importlib.metadata.distributions() if each.metadata["Name"]}
status = pathlib.Path("/var/lib/dpkg/status")
entries = status.read_text(errors="replace").split("\n\n") if status.exists() else []
fields = [dict(re.findall(r"(?m)^(Package|Version): (.+)$", entry)) for entry in entries]
debian = {each["Package"]: each["Version"] for each in fields if len(each) == 2}
print(json.dumps({"python": dict(sorted(python.items())), "debian": debian}))
"""

#: In the place of a network's name, so that `testbed clean` finds a container that an interrupted probe left.
PROBE_NETWORK = "image-probe"

Progress = Callable[[str], None]


class ImageError(EmulationError):
    """The worker image cannot be made; the text says why and what to do."""


@dataclass(frozen=True, slots=True)
class Recipes:
    """The hashes of what the three images are made from, as it is now. Of a foreign base it is the image's id."""

    base: str
    torch: str
    worker: str


def ensure_worker_image(client: docker.DockerClient, progress: Progress = print) -> str:
    """The tag of the worker image for the code as it is now; made first, where it is not there yet.

    Raises ImageError when a step fails.
    """
    foreign_base = os.environ.get("BASE_IMAGE")
    recipes = _recipes(client, foreign_base, progress)
    if worker := find(client, "worker", recipes.worker):
        return worker
    torch = find(client, "torch", recipes.torch)
    if torch is None:
        base = foreign_base or find(client, "base", recipes.base) or _make_base(client, recipes, progress)
        torch = _make_torch(client, base, recipes, progress)
    return _make_worker(client, torch, recipes, progress)


def renew_worker_image(client: docker.DockerClient, progress: Progress = print) -> str:
    """The tag of the worker image, made again if Debian's mirror has other versions by now of what its base holds.

    A base that BASE_IMAGE names is not ours to renew. Raises ImageError when a step fails.
    """
    worker = ensure_worker_image(client, progress)
    if os.environ.get("BASE_IMAGE"):
        return worker
    recipes = _recipes(client, None, progress)
    base = _make_base(client, recipes, progress)
    if packages_in(client, base)["debian"] == packages_in(client, worker)["debian"]:
        return worker
    return _make_worker(client, _make_torch(client, base, recipes, progress), recipes, progress)


def _recipes(client: docker.DockerClient, foreign_base: str | None, progress: Progress) -> Recipes:
    base = _foreign_id(client, foreign_base, progress) if foreign_base else base_recipe()
    wheels = [package.requirement for package in requirements.closure(requirements.read(ROOT), locked("sync"))]
    torch = hash_of([base, *wheels, hash_of_file(CONTAINERS / "torch.Dockerfile")])
    worker_inputs = [torch, hash_of_file(CONTAINERS / "worker.Dockerfile"), hash_of_file(CONTAINERS / "digits.py")]
    held = documentation.entries() | _worker_code()
    return Recipes(base, torch, hash_of(worker_inputs + held_by(held)))


def base_recipe(packages: Sequence[str] = ()) -> str:
    """The hash of what an image of Debian with these packages more is made from."""
    return hash_of([hash_of_file(CONTAINERS / "base.sh"), *packages])


def find(client: docker.DockerClient, kind: str, recipe: str) -> str | None:
    """The tag of an image of this recipe, the newest where a renewal made several; None where there is none."""
    labels = [f"{label}={value}" for label, value in ((KIND_LABEL, kind), (RECIPE_LABEL, recipe))]
    # In one request: an image that another process removes meanwhile is listed or not, and is no error.
    listed = client.api.images(filters={"label": labels})
    made = [(image["Created"], tag) for image in listed for tag in image["RepoTags"] or ()]
    named = [(created, tag) for created, tag in made if tag.startswith(f"testbed-{kind}:")]
    return max(named)[1] if named else None


def packages_in(client: docker.DockerClient, tag: str) -> dict[str, dict[str, str]]:
    """The versions of the packages that an image holds by name, by who packed them: `debian`, `python`.

    An image of a recipe of ours has them as labels. Any other is asked, in a container, and one without a Python holds
    none that are known; of a foreign base below an image of ours, what it brought is not known.
    """
    found = client.images.get(tag)
    if RECIPE_LABEL not in found.labels:
        return _packages_asked(client, str(found.id))
    return {
        packer: dict(package.split("=", 1) for package in found.labels.get(label, "").split())
        for packer, label in PACKAGES_LABELS.items()
    }


def record(client: docker.DockerClient, name: str) -> dict[str, Any]:
    """Return what a manifest says of an image: its name and ID, when it was built, and its packages' versions."""
    found = client.images.get(name)
    return {
        "name": next(iter(found.tags), name),
        "id": found.id,
        "built": found.attrs["Created"],
        "packages": packages_in(client, str(found.id)),
    }


def manifest_entry(made: Mapping[str, Any]) -> dict[str, Any]:
    """Return a record of an image as a run's manifest has it: the packages stand beside the image."""
    image = dict(made)
    return {"image_packages": image.pop("packages"), "image": image}


def _packages_asked(client: docker.DockerClient, identifier: str) -> dict[str, dict[str, str]]:
    """The packages of an image that has no labels of ours, kept by its ID, which names what it holds."""
    kept = BUILD / f"packages-{identifier.rpartition(':')[2][:12]}.json"
    with suppress(OSError, ValueError):
        return dict(json.loads(kept.read_text(encoding="utf-8")))
    found: dict[str, dict[str, str]] = {packer: {} for packer in PACKAGES_LABELS}
    with suppress(APIError, ContainerError, ValueError):  # it has no Python, or another one than is known
        found |= json.loads(python_output(client, identifier, PACKAGES))
    BUILD.mkdir(exist_ok=True)
    write_json(kept, found)
    return found


def _foreign_id(client: docker.DockerClient, name: str, progress: Progress) -> str:
    try:
        image = client.images.get(name)
    except ImageNotFound:
        try:
            with timed_progress(progress, f"{name} (BASE_IMAGE), pulled from its registry"):
                image = client.images.pull(name)
        except APIError as error:
            raise ImageError(
                f"BASE_IMAGE is {name}, which is not on this machine and could not be pulled: "
                f"{error.explanation}. `docker pull {name}` fetches an image that needs your credentials. Set "
                "BASE_IMAGE to another image, or unset it, and mmdebstrap builds a base."
            ) from error
    return str(image.id)


def import_base(client: docker.DockerClient, kind: str, recipe: str, packages: Sequence[str] = ()) -> str:
    """Make an image of Debian with Python and these packages more, unless there is one that holds the same; its tag.

    Raises ImageError when mmdebstrap fails.
    """
    BUILD.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=BUILD) as scratch:
        archive = Path(scratch) / "base.tar"
        command(
            [str(CONTAINERS / "base.sh"), str(archive), *packages],
            "The base is built from Debian packages: check that this machine reaches a Debian mirror, or set "
            "BASE_IMAGE to an image with Python that the Docker engine has or can pull.",
        )
        held = " ".join(sorted(archive.with_suffix(".packages").read_text().split()))
        repository, version = f"testbed-{kind}", hash_of([recipe, held])
        tag = f"{repository}:{version}"
        if not exists(client, tag):
            labels = _labels(kind, recipe) | {PACKAGES_LABELS["debian"]: held}
            changes = ["LABEL " + " ".join(f'{label}="{value}"' for label, value in labels.items())]
            client.api.import_image_from_file(str(archive), repository=repository, tag=version, changes=changes)
    return tag


def _make_base(client: docker.DockerClient, recipes: Recipes, progress: Progress) -> str:
    with timed_progress(progress, "base image with mmdebstrap"):
        return import_base(client, "base", recipes.base)


def _make_torch(client: docker.DockerClient, base: str, recipes: Recipes, progress: Progress) -> str:
    with timed_progress(progress, "torch image"):
        python, there = probe_python(client, base)
        wanted = [package for package in locked("sync") if package.name not in there]
        wheels = wheelhouse(python, wanted)
        arguments = {"BASE": base, "PACKAGES": pinned(wanted), "CHECKOUT": str(ROOT)}
        return build_image(client, "torch", recipes.torch, [base], wheels, arguments, python_packages(wheels))


def probe_python(client: docker.DockerClient, image: str) -> tuple[str, list[str]]:
    """Which Python an image has (`3.11`), and which of the packages that workers and programs need."""
    python, there = json.loads(python_output(client, image, PROBE))
    return python, there


def python_output(client: docker.DockerClient, image: str, program: str) -> bytes:
    """What a Python program prints in a container of an image. APIError or ContainerError where it doesn't run."""
    words, labels = ["python3", "-c", program], {LABEL: PROBE_NETWORK}
    container = client.containers.create(image, entrypoint=words, labels=labels, network_mode="none")
    try:  # `containers.run` leaves one that can't be started
        container.start()
        code = container.wait()["StatusCode"]
        if code != 0:
            raise ContainerError(container, code, words, image, container.logs(stdout=False).decode(errors="replace"))
        return bytes(container.logs(stderr=False))
    finally:
        container.remove(force=True)


def wheelhouse(python: str, packages: Sequence[Locked]) -> dict[str, Path | None]:
    """A build's `wheelhouse/`: these packages for a Python such as `3.11`, all they need, and pip's own wheel.

    Each file has a hash that requirements.lock has. Empty when no package is asked for.
    Raises ImageError when pip on this machine cannot get one.
    """
    if not packages:
        return {"wheelhouse": None}
    lock = requirements.read(ROOT)
    packages = [*packages, lock["pip"]]  # which an image is built with, out of its own wheel
    target = ("--only-binary=:all:", f"--python-version={python}")
    try:
        wanted = "".join(package.requirement for package in requirements.chosen(packages, *target))
    except LockError as error:
        raise ImageError(str(error)) from error
    # A directory for every set of inputs: one that is left over would bring two versions of a package.
    needed = [package.requirement for package in requirements.closure(lock, packages)]
    directory = BUILD / f"wheelhouse-{hash_of([python, wanted, *needed])}"
    directory.mkdir(parents=True, exist_ok=True)
    listed = directory / "requirements.txt"
    listed.write_text(wanted)
    command(
        [
            *(sys.executable, "-m", "pip", "download", *PIP_PLAIN, "--require-hashes", "--dest", str(directory)),
            *(*target, "--requirement", str(listed), "--constraint", str(ROOT / "requirements.lock")),
        ],
        f"pip on this machine must be able to download {pinned(packages)} for Python {python} and their dependencies "
        "as in requirements.lock: check its settings (`pip config list`) and the network. A file whose hash does not "
        "match is not the one that was locked: do not use it unless you know where it comes from.",
    )
    return {"wheelhouse": None} | {f"wheelhouse/{wheel.name}": wheel for wheel in sorted(directory.glob("*.whl"))}


def locked(*extras: str) -> list[Locked]:
    """Return the packages that extras of pyproject.toml ask for, as locked. ImageError where the lock lacks one."""
    try:
        return requirements.locked(*extras, root=ROOT)
    except LockError as error:
        raise ImageError(str(error)) from error


def pinned(packages: Iterable[Locked]) -> str:
    """These packages for pip's command line."""
    return " ".join(f"{package.name}=={package.version}" for package in packages)


def python_packages(wheels: Iterable[str], below: Mapping[str, str] = MappingProxyType({})) -> dict[str, str]:
    """The label that tells which packages an image has: those `below` it, and those that these wheels of a wheelhouse
    make of it, pip aside."""
    names = [wheel.rpartition("/")[2].split("-")[:2] for wheel in wheels if wheel.endswith(".whl")]
    held = {**below, **{canonical(name): version for name, version in names if name != "pip"}}
    return {PACKAGES_LABELS["python"]: " ".join(f"{name}={version}" for name, version in held.items())}


def _make_worker(client: docker.DockerClient, torch: str, recipes: Recipes, progress: Progress) -> str:
    with timed_progress(progress, "worker image"):
        digits = {f"digits/{path.name}": path for path in sorted(digits_folder().iterdir())}
        entries = digits | documentation.entries() | _worker_code()
        tag = build_image(client, "worker", recipes.worker, [torch], entries, {"RUNTIME": torch})
    wanted = {kind: find(client, kind, recipe) for kind, recipe in dataclasses.asdict(recipes).items()}
    remove_superseded(client, wanted | {"build": None})
    return tag


def digits_folder() -> Path:
    """The digits as workers read them, made the first time."""
    BUILD.mkdir(exist_ok=True)  # the engine may have the images below from another checkout
    digits = BUILD / f"digits-{hash_of([hash_of_file(CONTAINERS / 'digits.py')])}"
    if not digits.exists():
        with tempfile.TemporaryDirectory(dir=BUILD) as scratch:
            baked = Path(scratch) / "digits"
            command(
                [sys.executable, str(CONTAINERS / "digits.py"), str(baked)],
                f"The digits come with scikit-learn: `{INSTALL}` installs it.",
            )
            try:
                baked.rename(digits)
            except OSError:
                if not digits.exists():  # else another process made the same meanwhile
                    raise
    return digits


def build_image(
    client: docker.DockerClient,
    kind: str,
    recipe: str,
    below: Sequence[str],
    entries: Mapping[str, Path | None],
    arguments: Mapping[str, str],
    labels: Mapping[str, str] = MappingProxyType({}),
    dockerfile: str | None = None,
) -> str:
    """Build `containers/KIND.Dockerfile`, or that of another kind, without a network, out of a context of these entries
    alone; its tag.

    The tag is of the recipe, of the images `below` it, and of what the entries hold.
    Raises ImageError with the end of its output when it fails.
    """
    tag = f"testbed-{kind}:{hash_of([recipe, *below, *held_by(entries)])}"
    with _context({**entries, "Dockerfile": CONTAINERS / f"{dockerfile or kind}.Dockerfile"}) as context:
        for attempt in range(BUILD_ATTEMPTS):
            context.seek(0)
            try:
                client.images.build(
                    fileobj=context,
                    custom_context=True,
                    tag=tag,
                    buildargs=dict(arguments),
                    labels={**_labels(kind, recipe), **labels},
                    network_mode="none",
                    rm=True,
                    forcerm=True,
                )
            except (BuildError, APIError) as error:
                why = str(error) if isinstance(error, BuildError) else str(error.explanation)
                if LAYER_GONE in why and attempt + 1 < BUILD_ATTEMPTS:
                    continue
                built = f"\n{tail(said(error))}" if isinstance(error, BuildError) else ""
                raise ImageError(f"Building {tag} failed: {why}{built}") from error
            break
    return tag


def said(error: BuildError) -> str:
    """What a build had said when it failed."""
    return "".join(line.get("stream", "") for line in error.build_log)


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


def remove_superseded(client: docker.DockerClient, wanted: Mapping[str, str | None]) -> None:
    """Of each kind, remove what this checkout made before and no longer wants; what a container still uses stays."""
    for image in client.api.images(filters={"label": f"{CHECKOUT_LABEL}={ROOT}"}):  # in one request, as in `find`
        kind, tags = image["Labels"][KIND_LABEL], [tag for tag in image["RepoTags"] or () if tag != NO_TAG]
        if kind not in wanted or wanted[kind] in tags:
            continue
        for name in tags or [image["Id"]]:
            remove_unused(client, name)


def remove_unused(client: docker.DockerClient, name: str) -> None:
    """Remove an image, unless a container or another image stands on it, or it has gone meanwhile."""
    try:
        client.images.remove(name)
    except APIError as error:
        if error.status_code not in (404, 409):
            raise


def _labels(kind: str, recipe: str) -> dict[str, str]:
    return {KIND_LABEL: kind, CHECKOUT_LABEL: str(ROOT), RECIPE_LABEL: recipe}


def _worker_code() -> dict[str, Path]:
    found = (path for pattern in WORKER_CODE for path in sorted(PACKAGE.glob(pattern)))
    return {str(path.relative_to(PACKAGE.parent)): path for path in found}


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


def held_by(entries: Mapping[str, Path | None]) -> list[str]:
    """The entries of a build by their names and what they hold, for a hash."""
    return [part for name, path in sorted(entries.items()) for part in (name, hash_of_file(path) if path else "")]


def hash_of(parts: Iterable[str]) -> str:
    """A tag for what is made of these parts."""
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:12]


def command(arguments: list[str], remedy: str) -> None:
    """Run it. Raises ImageError with the end of its output, and the remedy, when it fails."""
    done = subprocess.run(arguments, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode != 0:
        raise ImageError(f"{arguments[0]} {how_it_ended(done.returncode)}:\n{tail(done.stdout)}\n{remedy}")


def tail(output: str) -> str:
    """Return the end of a command's output, to be quoted; of pip's, the part that has the reason."""
    if conflict := PIP_CONFLICT.search(output):
        output = conflict[0].rstrip()
    elif re.search(r"(?m)^ERROR: ", output):
        output = re.sub(r"(?m)^WARNING: .*\n", "", output)  # of each index that it has asked
    # Where a file does not match, pip lists every hash that would: of torch 32, after which its name is out of sight.
    output = re.sub(r"(?m)^ *Expected .* [0-9a-f]{64}\n", "", output)
    return "\n".join(f"    {line}" for line in output.splitlines()[-OUTPUT_TAIL_LINES:])


@contextmanager
def timed_progress(progress: Progress, what: str) -> Iterator[None]:
    """Say that something is being made, and how long it took."""
    progress(f"building {what}")
    started = time.monotonic()
    yield
    progress(f"built {what} in {time.monotonic() - started:.1f} s")


def main() -> int:
    """`python -m testbed.emulation.containers.image`: see that the worker image is there, and print its tag."""
    try:
        print(ensure_worker_image(engine.connect()))
    except Exception as error:
        code, text = ending_of(error)
        print(text, file=sys.stderr)
        return code
    return 0


if __name__ == "__main__":
    sys.exit(main())
