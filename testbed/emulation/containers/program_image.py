"""The images that programs which are not ours run in.

testbed-program        the worker's, with python, torchrun, NumPy, the package's metadata    unless another is named
testbed-requirements   the same, with what a requirements file asks for                      `requirements.txt`
testbed-dockerfile     what a Dockerfile makes, with a network as any build has              `Dockerfile`
any other              as the engine has it                                                  `iperf3:3`
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path

import docker
from docker.errors import APIError, BuildError, ImageNotFound

from testbed.emulation.containers import engine, image, requirements
from testbed.emulation.containers.image import ImageError, Progress
from testbed.emulation.containers.requirements import canonical
from testbed.resources import __version__
from testbed.spec.errors import Fault, SpecError
from testbed.trace.text import text_of

#: What PyTorch's own programs need beside it: `all_gather_object` does not work without NumPy.
ADDED = ("numpy",)

#: What the builder of an engine's API does not know: options, texts within a Dockerfile, platforms by a variable.
BUILDKIT = re.compile(
    r"(?i)\s*(?:"
    r"(?:RUN|COPY|ADD)\s+(?:--\S+\s+)*?"
    r"--(?:mount|network|security|device|link|chmod|checksum|parents|exclude|keep-git-dir|unpack)\b\S*"
    r"|(?:RUN|COPY|ADD)\s(?:[^#]*\s)?<<-?['\"]?[A-Za-z_]\w*['\"]?"
    r"|FROM\s+--platform=\$\{?(?:BUILD|TARGET)\w+\}?)"
)
#: Of a requirements file: `pip freeze` of a thousand packages, with their hashes.
MOST_REQUIREMENTS_BYTES = 2**20

TORCHRUN = '#!/bin/sh\nexec python3 -m torch.distributed.run "$@"\n'


def program_image(client: docker.DockerClient, wanted: str | None = None, progress: Progress = print) -> str:
    """An image by what a user calls it: a requirements file (`*.txt`), a Dockerfile, or a name that the engine knows;
    the usual one where none is named. Made first, where it must be.

    Raises SpecError where there is no such image or file, ImageError when a step of making it fails.
    """
    if wanted is None:
        return ensure_program_image(client, progress)
    if (file := Path(wanted)).is_file():
        if file.suffix == ".txt":
            return _with_requirements(client, file, progress)
        return _built(client, file.resolve(), progress)
    try:
        return str(client.images.get(wanted).id)
    except (ImageNotFound, APIError):
        remedy = f"a file that is there, or an image that is: `docker pull {wanted}`"
        rule = "is neither a Dockerfile or requirements file nor an image that the engine has"
        raise SpecError(wanted, [Fault("image", rule, remedy)]) from None


def ensure_program_image(client: docker.DockerClient, progress: Progress = print) -> str:
    """The tag of the usual image, for the code as it is now. Raises ImageError when a step fails."""
    worker = image.ensure_worker_image(client, progress)
    added, entries = _added(), _entries()
    recipe = image.hash_of([*_below(worker, entries), *(package.requirement for package in added)])
    if tag := image.find(client, "program", recipe):
        return tag
    with image.told(progress, "image for programs"):
        python, there = image.probe_python(client, worker)
        wanted = [package for package in added if package.name not in there]
        wheels = image.wheelhouse(python, wanted)
        arguments = {"WORKER": worker, "PACKAGES": image.pinned(wanted), "CHECKOUT": str(image.ROOT)}
        tag = image.build_image(client, "program", recipe, [worker], {**wheels, **entries}, arguments)
    image.remove_superseded(client, {"program": tag, "build": None})
    return tag


def _with_requirements(client: docker.DockerClient, file: Path, progress: Progress) -> str:
    worker = image.ensure_worker_image(client, progress)
    text, entries = _requirements_in(file), _entries()
    recipe = image.hash_of([*_below(worker, entries), text])
    if tag := image.find(client, "requirements", recipe):
        return tag
    with image.told(progress, f"image with {file}"):
        python, there = image.probe_python(client, worker)
        held = image.packages_in(client, worker)["python"]
        wheels = _downloaded(file, python, recipe, held)
        added = [wheel for wheel in wheels if _package(wheel) not in {*held, *there, "pip"}]
        context = {f"wheelhouse/{wheel.name}": wheel for wheel in wheels if wheel in added or _package(wheel) == "pip"}
        names = " ".join("{}=={}".format(*wheel.name.split("-")[:2]) for wheel in added)
        arguments = {"WORKER": worker, "PACKAGES": names, "CHECKOUT": str(image.ROOT)}
        entries = {"wheelhouse": None, **context, **entries}
        tag = image.build_image(
            client, "requirements", recipe, [worker], entries, arguments, image.python_packages(context), "program"
        )
    image.remove_superseded(client, {"requirements": tag, "build": None})
    return tag


def _requirements_in(file: Path) -> str:
    """Return the text of a requirements file, in any encoding that pip reads. SpecError where it is no text."""
    try:
        return text_of(file, MOST_REQUIREMENTS_BYTES)
    except (OSError, ValueError) as error:
        raise SpecError(
            file, [Fault("file", f"cannot be read: {error}", "a text file, a requirement a line")]
        ) from None


def _downloaded(file: Path, python: str, recipe: str, held: Mapping[str, str]) -> list[Path]:
    """The wheels of what a file asks for and of all that it needs; of what is `held`, in that version."""
    directory = image.BUILD / f"wheelhouse-{recipe}"
    directory.mkdir(parents=True, exist_ok=True)
    constraints = directory / "constraints.txt"
    constraints.write_text("".join(f"{name}=={version.partition('+')[0]}\n" for name, version in held.items()))
    usual = {package.name: package.version for package in [*_added(), requirements.read(image.ROOT)["pip"]]}
    try:
        image.command(
            [
                *(sys.executable, "-m", "pip", "download", *image.PIP_PLAIN, "--dest", str(directory)),
                *("--only-binary=:all:", f"--python-version={python}", "--constraint", str(constraints)),
                *("--requirement", str(file), *(f"{name}=={version}" for name, version in usual.items())),
            ],
            f"pip on this machine must be able to get all that {file} asks for as wheels for Python {python}, beside "
            "the worker's own packages: see what it says above, and its settings (`pip config list`).",
        )
    except ImageError as error:
        raise ImageError(f"{error}{kept_versions(str(error), {**held, **usual})}") from None
    return sorted(directory.glob("*.whl"))


def kept_versions(said: str, held: Mapping[str, str]) -> str:
    """Return a line about the packages that the image has, where they are those that pip found in a conflict."""
    quoted = "\n".join(line[4:] for line in said.splitlines() if line.startswith("    "))
    if not image.PIP_CONFLICT.search(quoted):
        return ""
    names = {canonical(name) for name in re.findall(r"(?<![\w.-])([\w.-]*\w)(?=[<>=!~ ])", quoted)}
    there = [f"{name} {version}" for name, version in sorted(held.items()) if name in names]
    return f"\nThe image has {', '.join(there)} already and keeps that: ask for no other version." if there else ""


def _package(wheel: Path) -> str:
    return canonical(wheel.name.split("-")[0])


def _built(client: docker.DockerClient, file: Path, progress: Progress) -> str:
    """What a Dockerfile makes of its folder. The engine finds again what has not changed; what it made before goes."""
    tag = f"testbed-dockerfile:{image.hash_of([str(file)])}"
    before = {str(found["Id"]) for found in client.api.images(name=tag)}
    labels = {image.KIND_LABEL: "dockerfile", image.CHECKOUT_LABEL: str(image.ROOT)}
    with image.told(progress, f"image of {file}"):
        try:
            made, _ = client.images.build(
                path=str(file.parent),
                dockerfile=file.name,
                tag=tag,
                labels=labels,
                buildargs=engine.user_proxies(),
                rm=True,
                forcerm=True,
            )
        except BuildError as error:
            said = f"{error}\n{image.tail(image.said(error))}"
            raise ImageError(f"Building {file} failed: {said}{buildkit_hint(file)}") from error
        except APIError as error:
            raise ImageError(f"Building {file} failed: {error.explanation}{buildkit_hint(file)}") from error
        except TypeError as error:
            raise ImageError(f"Building {file} failed: {error}") from error
    for superseded in before - {str(made.id)}:
        image.remove_unused(client, superseded)
    return tag


def buildkit_hint(file: Path) -> str:
    """Return a line about what of a Dockerfile needs BuildKit, with the way; empty where nothing does. The engine's own
    builder, which is all that its API has, refuses that, each form in other words."""
    text = re.sub(r"\\\s*\n", lambda end: " " * len(end[0]), file.read_text(encoding="utf-8", errors="replace"))
    needs = next(filter(None, map(BUILDKIT.match, text.splitlines())), None)
    if needs is None:
        return ""
    return (
        f"\n`{' '.join(needs[0].split())}` needs BuildKit, by which only Docker's own command builds. Write instead: "
        f"DOCKER_BUILDKIT=1 docker build -t NAME -f {file} {file.parent}, and then --image NAME"
    )


def _added() -> list[requirements.Locked]:
    return [package for package in image.locked("base") if package.name in ADDED]


def _below(worker: str, entries: Mapping[str, Path | None]) -> list[str]:
    """What the images that stand on the worker's are made from, packages aside."""
    return [worker, image.hash_of_file(image.CONTAINERS / "program.Dockerfile"), *image.held_by(entries)]


def _entries() -> dict[str, Path | None]:
    """What they hold beside packages, as files of a build."""
    texts = {"torchrun": TORCHRUN, **_metadata()}
    folder = image.BUILD / f"program-{image.hash_of(_flat(texts))}"
    for name, text in texts.items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return {name: folder / name for name in texts}


def _flat(texts: Mapping[str, str]) -> Iterable[str]:
    return (part for item in sorted(texts.items()) for part in item)


def _metadata() -> dict[str, str]:
    """What tells a Python which package `testbed` is, by names in the build's context: no wheel was installed there."""
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
