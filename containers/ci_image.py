"""The image that `make smoke` runs: this testbed with a Docker engine of its own, made without an image registry.

testbed-ci-base    Debian with what a run calls, made by mmdebstrap         changes with containers/base.sh
testbed-ci         + Python packages from the host's wheelhouse, code        rebuilt in seconds for other code
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import docker

from testbed.emulation.doctor import PROGRAMS
from testbed.emulation.image import (
    CONTAINERS,
    ROOT,
    Progress,
    build_image,
    exists,
    hash_of,
    hash_of_file,
    import_base,
    packages_of,
    probe_python,
    remove_superseded,
    told,
    wheelhouse,
)
from testbed.emulation.shaping import build

#: What a run calls, an engine, and what the shaping core is made with.
DEBIAN_PACKAGES = sorted({*PROGRAMS.values(), *build.PACKAGES.split(), "docker.io"})

#: What of the checkout goes into the image: all that a run reads, and that the worker image's tag is made of.
CODE = ("pyproject.toml", "containers/*", "experiments/*", "topologies/*", "traces/*", "testbed/**/*")


def ensure_ci_image(client: docker.DockerClient, progress: Progress = print) -> str:
    """The tag of the CI image for the code as it is now; made first, where it is not there yet.

    Raises ImageError when a step fails.
    """
    base = f"testbed-ci-base:{hash_of([hash_of_file(CONTAINERS / 'base.sh'), *DEBIAN_PACKAGES])}"
    packages = packages_of("sync") + packages_of("emulate")
    code = {str(path.relative_to(ROOT)): path for path in _code()}
    digests = [part for name, path in code.items() for part in (name, hash_of_file(path))]
    tag = f"testbed-ci:{hash_of([base, *packages, *digests])}"
    if exists(client, tag):
        return tag
    if not exists(client, base):
        with told(progress, f"base image {base} with mmdebstrap"):
            import_base(client, "ci-base", base, DEBIAN_PACKAGES)
    with told(progress, f"CI image {tag}"):
        python, _ = probe_python(client, base)
        entries = wheelhouse(python, packages) | {f"code/{name}": path for name, path in code.items()}
        build_image(client, "ci", tag, entries, {"BASE": base, "PACKAGES": " ".join(packages)})
    remove_superseded(client, {"ci-base": base, "ci": tag})
    return tag


def _code() -> Iterator[Path]:
    for pattern in CODE:
        yield from (path for path in sorted(ROOT.glob(pattern)) if path.is_file() and path.suffix != ".pyc")
