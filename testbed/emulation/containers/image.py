"""The worker image, built on this machine without an image registry.

Three images build on one another, each tagged with a hash of its content:

    testbed-base    Debian with Python, made by mmdebstrap           its packages and their versions
    testbed-torch   + torch and msgspec, from wheels that pip got    + the wheels by their own hashes
    testbed-worker  + data, user, code                               + both, file by file; rebuilt in 2 s

An image's content is known only once it is built, because Debian's mirror and pip's index change. An image is found by
a label with the hash of its recipe: the files of this checkout that define how it is built. So an image is built again
only if these files change, or by `make update`, from the mirror's present packages. Its labels list its packages.

BASE_IMAGE in the environment names another base: any image with a `python3`. If that image has PyTorch (with CUDA, for
example), its PyTorch is used instead of ours. BASE_IMAGE must name the same image at set-up and for runs.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from types import MappingProxyType
from typing import IO, Any

import docker
from docker.errors import APIError, BuildError, ContainerError, ImageNotFound
from requests.exceptions import RequestException

from testbed import resources
from testbed.emulation.containers import documentation, engine, requirements
from testbed.emulation.containers.limits import PIDS, RESTRICTIONS, ScratchSpace, clean_volumes, limit_settings
from testbed.emulation.containers.requirements import Locked, LockError, canonical
from testbed.emulation.errors import EmulationError, run_program
from testbed.emulation.label import LABEL
from testbed.emulation.process import ProcessIdentity, how_it_ended
from testbed.resources import PACKAGE, SETUP
from testbed.telemetry.store import write_json
from testbed.trace.text import hash_of_file

ROOT = requirements.ROOT
CONTAINERS = ROOT / "containers"
BUILD = resources.BUILD

#: The command that installs the extra with scikit-learn.
INSTALL = SETUP if resources.IS_CHECKOUT else "pip install 'wan-testbed[emulate]'"

#: The part of the package that a worker gets: the sync library, the worker's program and their common modules.
WORKER_CODE = (
    "__init__.py",
    "atomic_file.py",
    "errors.py",
    "lazy.py",
    "link.py",
    "plan.py",
    "protocol.py",
    "resources.py",
    "schema.py",
    "scheme_autoload.py",
    "sockets.py",
    "sudo.py",
    "torch_backend.py",
    "workload.py",
    "schemes/**/*.py",
    "sync/**/*.py",
    "worker/**/*.py",
)

#: The prefix of the tags that images get here. Other tags are a user's, and their images are kept.
OWN_TAG = "testbed-"
#: The kind of an image, on every image made here; only images with this label are ever removed.
KIND_LABEL = "testbed.image"
#: An engine may list this in place of tags.
NO_TAG = "<none>:<none>"
#: The engine's errors when another process removes a layer that a build has just found in the cache, or has just made.
#: The build is then repeated: the cache no longer has that layer.
LAYER_GONE, BUILD_ATTEMPTS = re.compile(r"failed to get digest|unknown parent image ID|No such image: sha256:"), 3
#: The error of an engine, with status 500, when another process removes the same image or a layer below it meanwhile.
REMOVED_MEANWHILE = "unrecognized image ID"

#: The file of a wheelhouse with the hash of the requirements.lock that it was last filled for.
FILLED_FOR = "lock.sha256"
#: The file that a process locks while it builds or removes images.
IMAGES_LOCK = "images.lock"

#: The checkout from which an image was built, so that two checkouts do not remove each other's images.
CHECKOUT_LABEL = "testbed.checkout"
#: The hash of an image's recipe, by which it is found.
RECIPE_LABEL = "testbed.recipe"
#: The packages in an image, each `name=version`, by packager.
PACKAGES_LABELS = {"debian": "testbed.packages.debian", "python": "testbed.packages.python"}

#: The number of lines quoted from a failed command's output.
OUTPUT_TAIL_LINES = 15

#: pip's reason for a conflict. The advice after it is the same for any conflict.
PIP_CONFLICT = re.compile(r"(?ms)^ERROR: Cannot install .*?(?=^Additionally, |^To fix this |\Z)")
#: Options of pip without which it prints more than a reason or, with --quiet, no reason for a conflict.
PIP_PLAIN = ("--progress-bar=off", "--disable-pip-version-check")

#: Prints a base's Python version, and which of the packages that workers and programs need it has.
PROBE = (
    "import importlib.util, json, sys; "
    "there = [name for name in ('msgspec', 'numpy', 'torch') if importlib.util.find_spec(name)]; "
    "print(json.dumps(['%d.%d' % sys.version_info[:2], there]))"
)

#: Prints an image's packages: of Python (those that its `python3` finds) and of Debian.
PACKAGES = r"""
import importlib.metadata, json, pathlib, re
python = {each.metadata["Name"]: each.version for each in importlib.metadata.distributions() if each.metadata["Name"]}
status = pathlib.Path("/var/lib/dpkg/status")
entries = status.read_text(errors="replace").split("\n\n") if status.exists() else []
fields = [dict(re.findall(r"(?m)^(Package|Version): (.+)$", entry)) for entry in entries]
debian = {each["Package"]: each["Version"] for each in fields if len(each) == 2}
print(json.dumps({"python": dict(sorted(python.items())), "debian": debian}))
"""

#: The prefix of the network label of probe containers, by which `testbed network clean` finds remaining ones.
PROBE_NETWORK = "image-probe"
#: The seconds that a probe's program may take. PyTorch's steps, the longest, take 5 s on two busy cores; a program of
#: a stranger's image may never end.
PROBE_S = 120.0
#: The memory of a probe's container: PyTorch's steps are measured in one.
PROBE_BYTES = 2 << 30

Progress = Callable[[str], None]


class ImageError(EmulationError):
    """The worker image cannot be built; the text says why and what to do."""


@dataclass(frozen=True, slots=True)
class Recipes:
    """The hashes of the present recipes of the three images. A foreign base has its image's ID instead of a hash."""

    base: str
    torch: str
    worker: str


def ensure_worker_image(client: docker.DockerClient, progress: Progress = print) -> str:
    """Return the tag of the worker image for the present code, built first if it does not exist.

    Raises:
        ImageError: A step failed.
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


def renew_worker_image(client: docker.DockerClient, progress: Progress) -> str:
    """Return the tag of the worker image, built again if Debian's mirror has other versions of its base's packages.

    A base that BASE_IMAGE names is not renewed.

    Raises:
        ImageError: A step failed.
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
    return Recipes(base, torch, hash_of(worker_inputs + names_and_digests(held)))


def base_recipe(packages: Sequence[str] = ()) -> str:
    """Return the hash of the recipe of a Debian image with these additional packages."""
    return hash_of([hash_of_file(CONTAINERS / "base.sh"), *packages])


def find(client: docker.DockerClient, kind: str, recipe: str) -> str | None:
    """Return the newest tag of an image of this recipe, or None."""
    labels = [f"{label}={value}" for label, value in ((KIND_LABEL, kind), (RECIPE_LABEL, recipe))]
    # In one request, so that an image that another process removes meanwhile causes no error.
    listed = client.api.images(filters={"label": labels})
    made = [(image["Created"], tag) for image in listed for tag in image["RepoTags"] or ()]
    named = [(created, tag) for created, tag in made if tag.startswith(f"testbed-{kind}:")]
    return max(named)[1] if named else None


def packages_in(client: docker.DockerClient, tag: str) -> dict[str, dict[str, str]]:
    """Return the versions of an image's packages by name, by packager: `debian`, `python`.

    An image with a tag of ours has them as labels, except that of a Dockerfile. Another image is asked in a container;
    without a Python it reports none. The packages of a foreign base below an image of ours are not known.
    """
    found = client.images.get(tag)
    # A user's image on top of one of ours inherits the labels, and may hold more packages.
    kind = found.labels.get(KIND_LABEL)
    if kind == "dockerfile" or not any(name.startswith(f"testbed-{kind}:") for name in found.tags):
        return _packages_asked(client, str(found.id))
    return {
        packer: dict(package.split("=", 1) for package in found.labels.get(label, "").split())
        for packer, label in PACKAGES_LABELS.items()
    }


def record(client: docker.DockerClient, name: str) -> dict[str, Any]:
    """Return an image's entry for a manifest: its name and ID, its build time, and its packages' versions."""
    found = client.images.get(name)
    return {
        "name": next(iter(found.tags), name),
        "id": found.id,
        "built": found.attrs["Created"],
        "packages": packages_in(client, str(found.id)),
    }


def manifest_entry(made: Mapping[str, Any]) -> dict[str, Any]:
    """Return a record of an image as a run's manifest has it: the packages beside the image."""
    image = dict(made)
    return {"image_packages": image.pop("packages"), "image": image}


def volumes_in(client: docker.DockerClient, name: str) -> tuple[str, ...]:
    """Return the paths of an image's volumes. Raises SpecError for a path where no container may have one."""
    found = client.images.get(name)
    return clean_volumes(next(iter(found.tags), name), found.attrs["Config"].get("Volumes") or ())


def _packages_asked(client: docker.DockerClient, identifier: str) -> dict[str, dict[str, str]]:
    """Return the packages that an image lists itself, cached by the image's ID."""
    kept = BUILD / f"packages-{identifier.rpartition(':')[2][:12]}.json"
    with suppress(OSError, ValueError):
        return dict(json.loads(kept.read_text(encoding="utf-8")))
    found: dict[str, dict[str, str]] = {packer: {} for packer in PACKAGES_LABELS}
    try:
        found |= _packages_told(python_output(client, identifier, PACKAGES))
    except engine.EngineError:
        return found  # a less busy machine may list the packages in time
    except (APIError, ContainerError, RecursionError, ValueError):
        pass  # it has no Python, or an unknown one
    BUILD.mkdir(parents=True, exist_ok=True)
    write_json(kept, found)
    return found


def _packages_told(output: bytes) -> dict[str, dict[str, str]]:
    """Return the packages in the output of PACKAGES. Raises ValueError for other output, which any image may make."""
    told = json.loads(output)
    if not isinstance(told, dict) or not all(isinstance(each, dict) for each in told.values()):
        raise ValueError("the output does not list packages")
    return {
        packer: {name: str(version) for name, version in told.get(packer, {}).items()} for packer in PACKAGES_LABELS
    }


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
    """Build an image of Debian with Python and additional packages, unless an equal one exists; return its tag.

    Raises:
        ImageError: mmdebstrap failed.
    """
    BUILD.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=BUILD) as scratch:
        archive = Path(scratch) / "base.tar"
        command(
            [str(CONTAINERS / "base.sh"), str(archive), *packages],
            "The base is built from Debian packages: check that this machine reaches a Debian mirror, or set "
            "BASE_IMAGE to an image with Python that the Docker engine has or can pull.",
            _apt_proxies(),
        )
        held = " ".join(sorted(archive.with_suffix(".packages").read_text().split()))
        repository, version = f"testbed-{kind}", hash_of([recipe, held])
        tag = f"{repository}:{version}"
        if not exists(client, tag):
            labels = _labels(kind, recipe) | {PACKAGES_LABELS["debian"]: held}
            changes = ["LABEL " + " ".join(f'{label}="{value}"' for label, value in labels.items())]
            with _alone():
                client.api.import_image_from_file(str(archive), repository=repository, tag=version, changes=changes)
    return tag


def _apt_proxies() -> dict[str, str]:
    """Return the proxies in apt's settings as variables, since mmdebstrap's apt reads none of this machine's settings.

    apt itself uses the proxy for http where there is none for https.
    """
    http, https = "Acquire::http::Proxy", "Acquire::https::Proxy"
    words = ("apt-config", "shell", "http_proxy", http, "https_proxy", http, "https_proxy", https)
    try:
        told = subprocess.run(words, capture_output=True, text=True).stdout
    except OSError:  # without apt there is no mmdebstrap: base.sh says so
        return {}
    proxies = (line.partition("=") for line in shlex.split(told))
    return {name: value for name, _, value in proxies if "://" in value}


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
    """Return an image's Python version (`3.11`), and which packages that workers and programs need it has."""
    python, there = json.loads(python_output(client, image, PROBE))
    return python, there


def python_output(client: docker.DockerClient, image: str, program: str) -> bytes:
    """Return what a Python program prints in a container of an image, with the restrictions of a worker's container.

    Raises:
        APIError, ContainerError: The program did not run.
        EngineError: The program did not end within PROBE_S.
        SpecError: The image has a volume where no container may have one.
    """
    words = ["python3", "-c", program]
    container = client.containers.create(
        image,
        entrypoint=words,
        labels={LABEL: probe_network()},
        **RESTRICTIONS,
        **ScratchSpace(volumes=volumes_in(client, image)).settings(),
        **limit_settings(PROBE_BYTES, PIDS),
    )
    try:  # `containers.run` would leave a container that can't be started
        container.start()
        try:
            code = container.wait(timeout=PROBE_S)["StatusCode"]
        except (engine.EngineGoneError, RequestException) as error:
            raise engine.EngineError(
                f"the `python3` of {image} did not end within {PROBE_S:.0f} s, or the Docker engine has ended"
            ) from error
        if code != 0:
            raise ContainerError(container, code, words, image, container.logs(stdout=False).decode(errors="replace"))
        return bytes(container.logs(stderr=False))
    finally:
        container.remove(force=True, v=True)


def probe_network() -> str:
    """Return the network label of this process's probe containers, which names the process."""
    own = ProcessIdentity.own()
    return f"{PROBE_NETWORK}-{own.pid}-{own.start_ticks}"


def prober(network: str) -> ProcessIdentity | None:
    """Return the process whose probe containers have this network label; None if it has ended, or for other labels."""
    named = re.fullmatch(rf"{PROBE_NETWORK}-(\d+)-(\d+)", network)
    process = ProcessIdentity(int(named[1]), int(named[2])) if named else None
    return process if process is not None and process.is_running else None


def wheelhouse(python: str, packages: Sequence[Locked]) -> dict[str, Path | None]:
    """Return a build's `wheelhouse/`: these packages for a Python such as `3.11`, their dependencies, and pip's wheel.

    Each file's hash is in requirements.lock. Without packages the folder is empty.

    Raises:
        ImageError: pip on this machine cannot download one.
    """
    if not packages:
        return {"wheelhouse": None}
    lock = requirements.read(ROOT)
    packages = [*packages, lock["pip"]]  # the build runs pip out of its wheel
    target = ("--only-binary=:all:", f"--python-version={python}")
    try:
        wanted = "".join(package.requirement for package in requirements.chosen(packages, *target))
    except LockError as error:
        raise ImageError(str(error)) from error
    # A directory for every set of inputs: a shared directory could hold two versions of a package.
    needed = [package.requirement for package in requirements.closure(lock, packages)]
    directory = BUILD / f"wheelhouse-{hash_of([python, wanted, *needed])}"
    BUILD.mkdir(parents=True, exist_ok=True)
    listed = directory / "requirements.txt"
    # pip takes a file that another pip is still writing for a broken file, and removes it.
    with directory.with_suffix(".lock").open("w") as locking:
        fcntl.flock(locking, fcntl.LOCK_EX)
        directory.mkdir(exist_ok=True)  # under the lock, or another process could remove the folder as superseded
        listed.write_text(wanted)
        command(
            [
                *(sys.executable, "-P", "-m", "pip", "download", *PIP_PLAIN, "--require-hashes"),
                *("--dest", str(directory), *target),
                *("--requirement", str(listed), "--constraint", str(ROOT / "requirements.lock")),
            ],
            f"pip on this machine must be able to download {pinned(packages)} for Python {python} and their "
            "dependencies as in requirements.lock: check its settings (`pip config list`) and the network. A file "
            "whose hash does not match is not the one that was locked: do not use it unless you know where it comes "
            "from.",
        )
        (directory / FILLED_FOR).write_text(hash_of_file(ROOT / "requirements.lock"))
    _remove_superseded_wheels()
    return {"wheelhouse": None} | {f"wheelhouse/{wheel.name}": wheel for wheel in sorted(directory.glob("*.whl"))}


def _remove_superseded_wheels() -> None:
    """Remove the wheels that were downloaded for an earlier requirements.lock, unless a process fills their folder."""
    present = hash_of_file(ROOT / "requirements.lock")
    for folder in [path for path in BUILD.glob("wheelhouse-*") if path.is_dir()]:
        with folder.with_suffix(".lock").open("w") as locking, suppress(BlockingIOError):
            fcntl.flock(locking, fcntl.LOCK_EX | fcntl.LOCK_NB)
            filled_for = folder / FILLED_FOR
            if not filled_for.exists() or filled_for.read_text() != present:
                shutil.rmtree(folder, ignore_errors=True)


def locked(*extras: str) -> list[Locked]:
    """Return the packages of extras of pyproject.toml, as locked. Raises ImageError if the lock lacks one."""
    try:
        return requirements.locked(*extras, root=ROOT)
    except LockError as error:
        raise ImageError(str(error)) from error


def pinned(packages: Iterable[Locked]) -> str:
    """Return these packages for pip's command line."""
    return " ".join(f"{package.name}=={package.version}" for package in packages)


def python_packages(wheels: Iterable[str], below: Mapping[str, str] = MappingProxyType({})) -> dict[str, str]:
    """Return the label with an image's Python packages: those of the image below, and these wheels without pip."""
    names = [wheel.rpartition("/")[2].split("-")[:2] for wheel in wheels if wheel.endswith(".whl")]
    held = {**below, **{canonical(name): version for name, version in names if name != "pip"}}
    return {PACKAGES_LABELS["python"]: " ".join(f"{name}={version}" for name, version in held.items())}


def _make_worker(client: docker.DockerClient, torch: str, recipes: Recipes, progress: Progress) -> str:
    with timed_progress(progress, "worker image"):
        digits = {f"digits/{path.name}": path for path in sorted(digits_folder().iterdir())}
        entries = digits | documentation.entries() | _worker_code()
        tag = build_image(client, "worker", recipes.worker, [torch], entries, {"RUNTIME": torch})
    wanted = {kind: find(client, kind, recipe) for kind, recipe in asdict(recipes).items()}
    remove_superseded(client, wanted | {"build": None})
    return tag


def digits_folder() -> Path:
    """Return the folder of the digits data set, made at first use."""
    BUILD.mkdir(parents=True, exist_ok=True)  # the engine may have the images below from another checkout
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
                if not digits.exists():  # otherwise another process made the same meanwhile
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
    """Build an image without a network, from these entries alone: files of its context by name, or None for a folder.

    The Dockerfile is `containers/KIND.Dockerfile`, or that of the kind `dockerfile`. `below` are the images that it
    builds on. The returned tag is a hash of the recipe, the images below and the entries' content.

    Raises:
        ImageError: The build failed; the text has the end of its output.
    """
    tag = f"testbed-{kind}:{hash_of([recipe, *below, *names_and_digests(entries)])}"
    with _context({**entries, "Dockerfile": CONTAINERS / f"{dockerfile or kind}.Dockerfile"}) as context:
        for attempt in range(BUILD_ATTEMPTS):
            context.seek(0)
            try:
                with _alone():
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
                if LAYER_GONE.search(why) and attempt + 1 < BUILD_ATTEMPTS:
                    continue
                built = f"\n{tail(said(error))}" if isinstance(error, BuildError) else ""
                raise ImageError(f"Building {tag} failed: {why}{built}") from error
            break
    return tag


def said(error: BuildError) -> str:
    """Return the output of a failed build."""
    return "".join(line.get("stream", "") for line in error.build_log)


@contextmanager
def _context(entries: Mapping[str, Path | None]) -> Iterator[IO[bytes]]:
    """Yield a tar of files by their names in it; None stands for an empty directory.

    Owners and times are left out, so that the same inputs find the same layers in the engine's cache.
    """
    BUILD.mkdir(parents=True, exist_ok=True)  # a foreign base may need no wheels, which are kept there
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
        yield file


def remove_superseded(
    client: docker.DockerClient, wanted: Mapping[str, str | None], only: Mapping[str, str] = MappingProxyType({})
) -> None:
    """Remove images of these kinds that this checkout built before and no longer needs.

    Images in use stay, and so do those with a tag that a user gave, such as `wan-testbed:0.2.0`.

    Args:
        client: The client of the engine.
        wanted: Kind -> the tag of the image to keep; None keeps no image of that kind.
        only: Labels; images with other values of these labels stay.
    """
    with _alone():
        for image in client.api.images(filters={"label": f"{CHECKOUT_LABEL}={ROOT}"}):  # in one request, as in `find`
            kind, tags = image["Labels"][KIND_LABEL], [tag for tag in image["RepoTags"] or () if tag != NO_TAG]
            others = any(image["Labels"].get(name, value) != value for name, value in only.items())
            if kind not in wanted or wanted[kind] in tags or others:
                continue
            for name in [tag for tag in tags if tag.startswith(OWN_TAG)] if tags else [image["Id"]]:
                remove_unused(client, name)


@contextmanager
def _alone() -> Iterator[None]:
    """Keep other processes of this checkout from building images, and from removing them, within the context.

    The engine lists an image before the image has its tag, so another process would remove it as superseded.
    """
    BUILD.mkdir(parents=True, exist_ok=True)
    with (BUILD / IMAGES_LOCK).open("w") as locking:
        fcntl.flock(locking, fcntl.LOCK_EX)
        yield


def remove_unused(client: docker.DockerClient, name: str) -> None:
    """Remove an image, unless a container or another image uses it, or it is gone already."""
    try:
        client.images.remove(name)
    except APIError as error:
        if error.status_code not in (404, 409) and REMOVED_MEANWHILE not in str(error.explanation):
            raise


def _labels(kind: str, recipe: str) -> dict[str, str]:
    return {KIND_LABEL: kind, CHECKOUT_LABEL: str(ROOT), RECIPE_LABEL: recipe}


def _worker_code() -> dict[str, Path]:
    found = (path for pattern in WORKER_CODE for path in sorted(PACKAGE.glob(pattern)))
    return {str(path.relative_to(PACKAGE.parent)): path for path in found}


def exists(client: docker.DockerClient, tag: str) -> bool:
    """Return whether the engine has an image of this name."""
    try:
        client.images.get(tag)
    except ImageNotFound:
        return False
    return True


def names_and_digests(entries: Mapping[str, Path | None]) -> list[str]:
    """Return the name of each entry of a build, followed by its file's digest; an empty folder has an empty digest."""
    return [part for name, path in sorted(entries.items()) for part in (name, hash_of_file(path) if path else "")]


def hash_of(parts: Iterable[str]) -> str:
    """Return a tag derived from these parts."""
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:12]


def command(arguments: list[str], remedy: str, variables: Mapping[str, str] = MappingProxyType({})) -> None:
    """Run a command with these variables added to the environment.

    Raises:
        ImageError: It failed. The text has the end of its output, and the remedy.
    """
    environment = {**os.environ, **variables}
    done = subprocess.run(arguments, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment)
    if done.returncode != 0:
        raise ImageError(f"{arguments[0]} {how_it_ended(done.returncode)}:\n{tail(done.stdout)}\n{remedy}")


def tail(output: str) -> str:
    """Return the end of a command's output for an error; for pip, the part with the reason."""
    if conflict := PIP_CONFLICT.search(output):
        output = conflict[0].rstrip()
    elif re.search(r"(?m)^ERROR: ", output):
        output = re.sub(r"(?m)^WARNING: .*\n", "", output)  # pip warns about each index that it asked
    # For a mismatch, pip lists every hash that would match: 32 for torch, which would push its name out of the tail.
    output = re.sub(r"(?m)^ *Expected .* [0-9a-f]{64}\n", "", output)
    return "\n".join(f"    {line}" for line in output.splitlines()[-OUTPUT_TAIL_LINES:])


@contextmanager
def timed_progress(progress: Progress, what: str) -> Iterator[None]:
    """Report that `what` is being built, and how long it took."""
    progress(f"building {what}")
    started = time.monotonic()
    yield
    progress(f"built {what} in {time.monotonic() - started:.1f} s")


def main() -> None:
    """Run `python -m testbed.emulation.containers.image`: ensure that the worker image exists, and print its tag."""
    print(ensure_worker_image(engine.connect()))


if __name__ == "__main__":
    sys.exit(run_program(main))
