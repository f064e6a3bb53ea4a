"""Build the CI image for `make image` and `make smoke`: the testbed with a Docker engine.

testbed-ci-base    Debian with the programs that a run calls, by mmdebstrap    changes with containers/base.sh
testbed-ci         + Python packages from the host's wheelhouse, the wheel     rebuilt in seconds for other code
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import docker

from containers.dist import SOURCE, build
from testbed import compiler
from testbed.emulation.containers import engine
from testbed.emulation.containers.image import (
    ROOT,
    base_recipe,
    build_image,
    find,
    hash_of,
    import_base,
    locked,
    names_and_digests,
    pinned,
    probe_python,
    python_packages,
    remove_superseded,
    timed_progress,
    wheelhouse,
)
from testbed.emulation.errors import run_program
from testbed.emulation.host.doctor import IMAGE_PACKAGES, PROGRAMS
from testbed.resources import __version__

#: The image's name for people: `wan-testbed:0.2.0`.
NAME = "wan-testbed"

#: The programs that a run calls, a Docker engine, the compiler of the shaping core, and what makes the worker image.
DEBIAN_PACKAGES = sorted({*PROGRAMS.values(), *compiler.PACKAGES.split(), *IMAGE_PACKAGES, "docker.io"})


def ensure_ci_image(client: docker.DockerClient) -> str:
    """Return the tag of the CI image for the present code. The image is built first if it does not exist.

    Raises:
        ImageError: a step failed.
    """
    source = {str(path.relative_to(ROOT)): path for path in _source()}
    recipes = {"ci-base": base_recipe(DEBIAN_PACKAGES)}
    recipes["ci"] = hash_of([recipes["ci-base"], *names_and_digests(source)])
    if tag := find(client, "ci", recipes["ci"]):
        return tag
    base = find(client, "ci-base", recipes["ci-base"])
    if base is None:
        with timed_progress(print, "CI base image with mmdebstrap"):
            base = import_base(client, "ci-base", recipes["ci-base"], DEBIAN_PACKAGES)
    with timed_progress(print, "CI image"):
        python, _ = probe_python(client, base)
        packages = locked("base", "sync", "emulate")
        wheels = wheelhouse(python, packages)
        arguments = {"BASE": base, "PACKAGES": pinned(packages), "CHECKOUT": str(ROOT)}
        with tempfile.TemporaryDirectory() as folder:
            wheel, _ = build(Path(folder))
            entries = wheels | {f"wheel/{wheel.name}": wheel}
            tag = build_image(client, "ci", recipes["ci"], [base], entries, arguments, python_packages(wheels))
    remove_superseded(client, {kind: find(client, kind, recipe) for kind, recipe in recipes.items()})
    return tag


def _source() -> Iterator[Path]:
    """Yield the files that the wheel is built from."""
    for name in SOURCE:
        found = sorted((ROOT / name).rglob("*")) if (ROOT / name).is_dir() else [ROOT / name]
        yield from (path for path in found if path.is_file() and path.suffix != ".pyc")


def main() -> None:
    """Build the image, tag it NAME too, and print its size."""
    client = engine.connect()
    image = client.images.get(ensure_ci_image(client))
    image.tag(NAME, __version__)
    print(f"{NAME}:{__version__}, which is {image.tags[0]}: {image.attrs['Size'] / 1e6:.0f} MB")


if __name__ == "__main__":
    sys.exit(run_program(main))
