"""The image that `make smoke` runs: this testbed with a Docker engine of its own, made without an image registry.

testbed-ci-base    Debian with what a run calls, made by mmdebstrap         changes with containers/base.sh
testbed-ci         + Python packages from the host's wheelhouse, code        rebuilt in seconds for other code
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import docker

from testbed import compiler
from testbed.emulation.containers.image import (
    ROOT,
    Progress,
    base_recipe,
    build_image,
    find,
    hash_of,
    held_by,
    import_base,
    locked,
    pinned,
    probe_python,
    python_packages,
    remove_superseded,
    told,
    wheelhouse,
)
from testbed.emulation.host.doctor import PROGRAMS

#: What a run calls, an engine, and what the shaping core is made with.
DEBIAN_PACKAGES = sorted({*PROGRAMS.values(), *compiler.PACKAGES.split(), "docker.io"})

#: What of the checkout goes into the image: all that a run reads, and that the worker image's tag is made of.
CODE = (
    "pyproject.toml",
    "requirements.lock",
    "containers/*",
    "experiments/*",
    "topologies/*",
    "traces/*",
    "testbed/**/*",
)


def ensure_ci_image(client: docker.DockerClient, progress: Progress = print) -> str:
    """The tag of the CI image for the code as it is now; made first, where it is not there yet.

    Raises ImageError when a step fails.
    """
    code = {f"code/{path.relative_to(ROOT)}": path for path in _code()}
    recipes = {"ci-base": base_recipe(DEBIAN_PACKAGES)}
    recipes["ci"] = hash_of([recipes["ci-base"], *held_by(code)])
    if tag := find(client, "ci", recipes["ci"]):
        return tag
    base = find(client, "ci-base", recipes["ci-base"])
    if base is None:
        with told(progress, "CI base image with mmdebstrap"):
            base = import_base(client, "ci-base", recipes["ci-base"], DEBIAN_PACKAGES)
    with told(progress, "CI image"):
        python, _ = probe_python(client, base)
        packages = locked("sync", "emulate")
        wheels = wheelhouse(python, packages)
        arguments = {"BASE": base, "PACKAGES": pinned(packages)}
        tag = build_image(client, "ci", recipes["ci"], [base], wheels | code, arguments, python_packages(wheels))
    remove_superseded(client, {kind: find(client, kind, recipe) for kind, recipe in recipes.items()})
    return tag


def _code() -> Iterator[Path]:
    for pattern in CODE:
        yield from (path for path in sorted(ROOT.glob(pattern)) if path.is_file() and path.suffix != ".pyc")
