"""The images in which the user's own programs run.

testbed-program        the worker's, with python, torchrun, NumPy, the package's metadata    unless another is named
testbed-requirements   the same, with what a requirements file asks for                      `requirements.txt`
testbed-dockerfile     what a Dockerfile makes, with a network as any build has              `Dockerfile`, or its folder
any other              as the engine has it                                                  `iperf3:3`

An image of a requirements file is found by the content of the file and everything that it names. Packages that it does
not pin have the versions that an index had when the image was built, until it is renewed. A Dockerfile is built each
time, and the engine reuses the steps whose files have not changed; renewing repeats all steps.
"""

from __future__ import annotations

import re
import shutil
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path

import docker
from docker.errors import APIError, BuildError, ImageNotFound
from docker.utils import exclude_paths

from testbed.emulation.containers import engine, image, requirements
from testbed.emulation.containers.image import ImageError, Progress
from testbed.emulation.containers.requirements import canonical
from testbed.emulation.containers.requirements_file import MOST_BYTES, RequirementsFile, copy_project
from testbed.resources import __version__
from testbed.spec.errors import Fault, SpecError
from testbed.spec.load import holds
from testbed.spec.program import is_path
from testbed.trace.text import bytes_of, decoded, hash_of_file

#: PyTorch's own programs need it: `all_gather_object` does not work without NumPy.
ADDED = ("numpy",)

#: Syntax that the builder of an engine's API does not support: options, here-documents, platforms by a variable.
BUILDKIT = re.compile(
    r"(?i)\s*(?:"
    r"(?:RUN|COPY|ADD)\s+(?:--\S+\s+)*?"
    r"--(?:mount|network|security|device|link|chmod|checksum|parents|exclude|keep-git-dir|unpack)\b\S*"
    r"|(?:RUN|COPY|ADD)\s(?:[^#]*\s)?<<-?['\"]?[A-Za-z_]\w*['\"]?"
    r"|FROM\s+--platform=\$\{?(?:BUILD|TARGET)\w+\}?)"
)
#: An engine's names for images: a registry and a path, a tag, a digest; or an image's ID.
PART = r"[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*"
REFERENCE = re.compile(rf"(?:[\w.-]+(?::\d+)?/)?{PART}(?:/{PART})*(?::\w[\w.-]{{0,127}})?(?:@sha256:[0-9a-f]{{64}})?")
LONGEST_NAME = 255
#: pip's errors for requirements that contradict each other, are invalid, or ask for a version that its index lacks.
#: Where it finds no version at all, pip may not reach its index.
ASKED_WRONGLY = re.compile(
    r"(?m)^ERROR: (?:Double requirement given|Invalid requirement|Could not find a version that satisfies the "
    r"requirement (?!.*\(from versions: none\)).*\(from versions: )[^\n]*"
)
#: An engine's answer to a Dockerfile that it does not understand.
BAD_REQUEST = 400

#: The folder in which this process puts its runs; it is not part of a project whose folder contains it.
RUNS = Path("runs")

TORCHRUN = '#!/bin/sh\nexec python3 -m torch.distributed.run "$@"\n'


def program_image(
    client: docker.DockerClient, wanted: str | None = None, progress: Progress = print, renew: bool = False
) -> str:
    """Return the image for programs: the default one, one that the engine has, or one built from a file of the user's.

    `wanted` is a requirements file (`*.txt`), a Dockerfile or its folder, or a name that the engine knows; None means
    the default image, which is built if the engine does not have it. `renew` builds the image of a file again.

    Raises:
        SpecError: There is no such image or file, or the requirements contradict each other.
        ImageError: A step of building it failed.
    """
    if wanted is None:
        return ensure_program_image(client, progress)
    if (file := file_of(wanted)) is not None:
        if file.suffix == ".txt":
            return _with_requirements(client, file, progress, renew)
        return _built(client, file.resolve(), progress, renew)
    is_name = not is_path(wanted) and len(wanted) <= LONGEST_NAME and REFERENCE.fullmatch(wanted)
    if is_name:
        with suppress(ImageNotFound):
            found = str(client.images.get(wanted).id)
            if renew:
                rule, remedy = "is the engine's own image, which is not built here", f"`docker pull {wanted}`"
                raise SpecError(wanted, [Fault("renew-image", rule, remedy)])
            return found
    remedy = "the path of a Dockerfile, of a folder with one or of a requirements file (*.txt), or an image's name"
    if is_name and (beside := file_of(f"./{wanted}")) is not None:
        remedy = f"./{wanted}, which is the path of {beside}"
    elif is_name:
        remedy += f" (`docker pull {wanted}` fetches one)"
    rule = "is neither a Dockerfile, nor a requirements file, nor an image that the engine has"
    raise SpecError(wanted or "--image ''", [Fault("image", rule, remedy)])


def file_of(wanted: str) -> Path | None:
    """Return the requirements file or Dockerfile that a user's word for an image names, or None."""
    file = Path(wanted)
    if is_path(wanted) and holds(file.is_dir):
        file /= "Dockerfile"
    return file if holds(file.is_file) else None


def digests_of(wanted: str) -> Iterator[str]:
    """Yield what an image of a file depends on: all that a requirements file names, or a Dockerfile's context.

    Raises SpecError as `program_image` does.
    """
    file = file_of(wanted)
    if file is None:
        return
    if file.suffix == ".txt":
        yield from RequirementsFile.read(file).digests(RUNS.resolve())
        return
    folder = file.resolve().parent
    for each in _context_of(file):
        yield from (str(each.relative_to(folder)), hash_of_file(each))


def files_of(wanted: str) -> Iterator[Path]:
    """Yield the files of this machine that an image of a file is made of; none for a name that the engine knows.

    Raises SpecError as `program_image` does.
    """
    file = file_of(wanted)
    if file is not None and file.suffix == ".txt":
        yield from RequirementsFile.read(file).files(RUNS.resolve())
    elif file is not None:
        yield from (file, *_context_of(file))


def _context_of(file: Path) -> Iterator[Path]:
    """Yield the files of a Dockerfile's folder that its build may read, sorted."""
    folder = file.resolve().parent
    ignores = folder / ".dockerignore"
    patterns = ignores.read_text(encoding="utf-8", errors="replace").splitlines() if ignores.is_file() else []
    for name in sorted(exclude_paths(str(folder), [each for each in patterns if each.strip()], file.name)):
        if (folder / name).is_file() and not (folder / name).is_relative_to(RUNS.resolve()):
            yield folder / name


#: The label of an image with packages of a requirements file: a digest of the file's path.
FILE_LABEL = "testbed.file"


def ensure_program_image(client: docker.DockerClient, progress: Progress) -> str:
    """Return the tag of the default image for the present code. Raises ImageError if a step fails."""
    worker = image.ensure_worker_image(client, progress)
    added, entries = _added(), _entries()
    labels = image.PACKAGES_LABELS.values()
    recipe = image.hash_of([*_recipe_above_worker(worker, entries), *(one.requirement for one in added), *labels])
    if tag := image.find(client, "program", recipe):
        return tag
    with image.timed_progress(progress, "image for programs"):
        python, there = image.probe_python(client, worker)
        wanted = [package for package in added if package.name not in there]
        wheels = image.wheelhouse(python, wanted)
        arguments = {"WORKER": worker, "PACKAGES": image.pinned(wanted), "CHECKOUT": str(image.ROOT)}
        packages = image.python_packages(wheels, image.packages_in(client, worker)["python"])
        tag = image.build_image(client, "program", recipe, [worker], {**wheels, **entries}, arguments, packages)
    image.remove_superseded(client, {"program": tag, "build": None})
    return tag


def _with_requirements(client: docker.DockerClient, file: Path, progress: Progress, renew: bool) -> str:
    worker = image.ensure_worker_image(client, progress)
    wanted, entries = RequirementsFile.read(file), _entries()
    own = {FILE_LABEL: image.hash_of([str(file.resolve())])}
    digests = wanted.digests(RUNS.resolve())
    recipe = image.hash_of([*_recipe_above_worker(worker, entries), *digests, *own.values()])
    if not renew and (tag := image.find(client, "requirements", recipe)):
        return tag
    # A folder of its own: a shared folder could hold two versions of a package.
    with image.timed_progress(progress, f"image with {file}"), tempfile.TemporaryDirectory(dir=image.BUILD) as scratch:
        python, there = image.probe_python(client, worker)
        held = image.packages_in(client, worker)["python"]
        wheels = _downloaded(wanted, python, Path(scratch), held)
        added = [wheel for wheel in wheels if _package(wheel) not in {*held, *there, "pip"}]
        context = {f"wheelhouse/{wheel.name}": wheel for wheel in wheels if wheel in added or _package(wheel) == "pip"}
        names = " ".join("{}=={}".format(*wheel.name.split("-")[:2]) for wheel in added)
        arguments = {"WORKER": worker, "PACKAGES": names, "CHECKOUT": str(image.ROOT)}
        entries = {"wheelhouse": None, **context, **entries}
        labels = {**image.python_packages(context, held), **own}
        tag = image.build_image(client, "requirements", recipe, [worker], entries, arguments, labels, "program")
    image.remove_superseded(client, {"requirements": tag}, own)
    image.remove_superseded(client, {"build": None})
    return tag


def _downloaded(wanted: RequirementsFile, python: str, directory: Path, held: Mapping[str, str]) -> list[Path]:
    """Download the wheels of everything that a file asks for, with dependencies, and return them.

    Packages in `held` keep their version. Projects and source archives are built into wheels.
    """
    constraints = directory / "constraints.txt"
    constraints.write_text("".join(f"{name}=={version.partition('+')[0]}\n" for name, version in held.items()))
    usual = [*_added(), requirements.read(image.ROOT)["pip"]]
    asked = [f"{package.name}=={package.version}" for package in usual]
    if wanted.is_hashed:  # pip takes hashes from a file alone
        pins = directory / "usual.txt"
        pins.write_text("".join(package.requirement for package in usual))
        asked = ["--requirement", str(pins)]
    written, made, wheels = (directory / name for name in ("written", "made", "wheels"))
    for folder in (written, made, wheels):
        folder.mkdir()
    listed = wanted.write(written, partial(_wheel_of_project, folder=made))
    try:
        image.command(
            [
                *(sys.executable, "-P", "-m", "pip", "download", *image.PIP_PLAIN, "--dest", str(wheels)),
                *("--only-binary=:all:", f"--python-version={python}", "--constraint", str(constraints)),
                *("--requirement", str(listed), *asked),
            ],
            f"pip on this machine must be able to download everything in {wanted.path} as wheels for Python {python}, "
            "beside the worker's own packages: see its output above, and its settings (`pip config list`).",
        )
    except ImageError as error:
        said = _pip_output(error)
        kept = kept_versions(said, {**held, **{package.name: package.version for package in usual}})
        if (reason := asked_wrongly(said)) is not None:
            remedy = "requirements that pip can meet together, beside the worker's own packages"
            raise SpecError(wanted.path, [Fault("image", f"{reason}{kept}", remedy)]) from None
        raise ImageError(f"{error}{kept}") from None
    for archive in sorted(wheels.iterdir()):
        if archive.suffix != ".whl":  # from a repository (`git+https:`), or a source archive by its URL
            shutil.copy(_wheel_of(archive, made), wheels)
    return sorted(wheels.glob("*.whl"))


def _wheel_of_project(project: Path, folder: Path) -> Path:
    """Build a wheel of a copy of a project's folder."""
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        copy = Path(scratch) / project.name
        copy_project(project, copy, RUNS.resolve())
        return _wheel_of(copy, folder, project)


def _wheel_of(source: Path, folder: Path, named: Path | None = None) -> Path:
    """Build a wheel of an archive or a project with pip. Raises ImageError if pip fails."""
    place = Path(tempfile.mkdtemp(dir=folder))
    image.command(
        [
            *(sys.executable, "-P", "-m", "pip", "wheel", *image.PIP_PLAIN, "--no-deps"),
            *("--wheel-dir", str(place), str(source)),
        ],
        f"pip on this machine must be able to build a wheel of {named or source.name}: see its output above.",
    )
    return next(place.glob("*.whl"))


def _pip_output(error: ImageError) -> str:
    """Return pip's output in an error of `image.command`, which indents it."""
    return "\n".join(line[4:] for line in str(error).splitlines() if line.startswith("    "))


def asked_wrongly(output: str) -> str | None:
    """Return pip's reason in its output if a file asks for what can't be installed anywhere; None otherwise."""
    found = image.PIP_CONFLICT.search(output) or ASKED_WRONGLY.search(output)
    return None if found is None else found[0].strip().removeprefix("ERROR: ")


def kept_versions(output: str, held: Mapping[str, str]) -> str:
    """Return a line on the packages `held` by the image that are in the conflict in pip's output; empty without one."""
    if not image.PIP_CONFLICT.search(output):
        return ""
    names = {canonical(name) for name in re.findall(r"(?<![\w.-])([\w.-]*\w)(?=[<>=!~ ])", output)}
    there = [f"{name} {version}" for name, version in sorted(held.items()) if name in names]
    return f"\nThe image already has {', '.join(there)} and keeps it: do not ask for another version." if there else ""


def _package(wheel: Path) -> str:
    return canonical(wheel.name.split("-")[0])


def _built(client: docker.DockerClient, file: Path, progress: Progress, renew: bool) -> str:
    """Build a Dockerfile in its folder, and remove the image it made before.

    The engine reuses unchanged steps, unless `renew` repeats all.
    """
    for each in (file, file.parent / ".dockerignore"):
        if each.is_file():
            _check_is_text(each)
    tag = f"testbed-dockerfile:{image.hash_of([str(file)])}"
    before = {str(found["Id"]) for found in client.api.images(name=tag)}
    labels = {image.KIND_LABEL: "dockerfile", image.CHECKOUT_LABEL: str(image.ROOT)}
    with image.timed_progress(progress, f"image of {file}"):
        try:
            made, _ = client.images.build(
                path=str(file.parent),
                dockerfile=file.name,
                tag=tag,
                labels=labels,
                buildargs=engine.user_proxies(),
                nocache=renew,
                rm=True,
                forcerm=True,
            )
        except BuildError as error:
            said = f"{error}\n{image.tail(image.said(error))}"
            raise ImageError(f"Building {file} failed: {said}{buildkit_hint(file)}") from error
        except APIError as error:
            said = f"{error.explanation}{buildkit_hint(file)}"
            if error.status_code == BAD_REQUEST:
                raise SpecError(file, [Fault("image", said, "a valid Dockerfile")]) from error
            raise ImageError(f"Building {file} failed: {said}") from error
        except (TypeError, OSError) as error:  # Docker's client could not read a file of the folder
            if getattr(error, "errno", None) is not None:
                raise
            raise ImageError(f"Building {file} failed: {error}; `.dockerignore` leaves files out") from error
    for superseded in before - {str(made.id)}:
        image.remove_unused(client, superseded)
    return str(made.id)  # the tag moves with the next build of this file


def _check_is_text(file: Path) -> None:
    """Raise SpecError if a file is not UTF-8 text, the only encoding that the engine reads, or is empty."""
    remedy = "a text file in UTF-8"
    try:
        data = bytes_of(file, MOST_BYTES)
        said = decoded(data)
        data.decode("utf-8")
    except UnicodeDecodeError:
        raise SpecError(file, [Fault("image", "is not in UTF-8, the only encoding the engine reads", remedy)]) from None
    except ValueError as error:
        raise SpecError(file, [Fault("image", f"cannot be read: {error}", remedy)]) from None
    if file.name != ".dockerignore" and not said.strip():
        raise SpecError(file, [Fault("image", "is empty", "a Dockerfile that begins with FROM")])


def buildkit_hint(file: Path) -> str:
    """Return a line about a Dockerfile's syntax that needs BuildKit, with the remedy; empty if there is none.

    The engine's own builder, the only one its API has, refuses each such form with another error.
    """
    text = re.sub(r"\\\s*\n", lambda end: " " * len(end[0]), file.read_text(encoding="utf-8", errors="replace"))
    needs = next(filter(None, map(BUILDKIT.match, text.splitlines())), None)
    if needs is None:
        return ""
    return (
        f"\n`{' '.join(needs[0].split())}` needs BuildKit, which only Docker's own command uses. Write instead: "
        f"DOCKER_BUILDKIT=1 docker build -t NAME -f {file} {file.parent}, and then --image NAME"
    )


def _added() -> list[requirements.Locked]:
    return [package for package in image.locked("base") if package.name in ADDED]


def _recipe_above_worker(worker: str, entries: Mapping[str, Path | None]) -> list[str]:
    """Return the worker image and the digests of all other inputs of an image on top of it, except packages."""
    return [worker, hash_of_file(image.CONTAINERS / "program.Dockerfile"), *image.names_and_digests(entries)]


def _entries() -> dict[str, Path | None]:
    """Return the files that these images hold beside packages, for a build."""
    texts = {"torchrun": TORCHRUN, **_metadata()}
    folder = image.BUILD / f"program-{image.hash_of(part for item in sorted(texts.items()) for part in item)}"
    for name, text in texts.items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        if not file.exists() or file.read_text() != text:  # another process may be reading it
            file.write_text(text)
    return {name: folder / name for name in texts}


def _metadata() -> dict[str, str]:
    """Return the package's metadata files by name: no wheel of `testbed` is installed in the image."""
    project = tomllib.loads((image.ROOT / "pyproject.toml").read_text())["project"]
    name = project["name"]
    folder = f"metadata/{name.replace('-', '_')}-{__version__}.dist-info"
    groups = [
        f"[{group}]\n" + "".join(f"{name} = {value}\n" for name, value in entries.items())
        for group, entries in project.get("entry-points", {}).items()
    ]
    return {
        f"{folder}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {__version__}\n",
        f"{folder}/entry_points.txt": "\n".join(groups),
    }
