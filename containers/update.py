"""Renew the Debian packages of the worker image, and print the changes: the second half of `make update`.

    python -m containers.update

The image for CI has a base of its own. It is removed if anything changed, and the next `make smoke` builds it from the
mirror's packages of that time.
"""

from __future__ import annotations

import sys

import docker

from testbed.emulation.containers import engine
from testbed.emulation.containers.image import (
    ImageError,
    Progress,
    ensure_worker_image,
    packages_in,
    remove_superseded,
    renew_worker_image,
)
from testbed.emulation.containers.requirements import changes


def update(client: docker.DockerClient, progress: Progress = print) -> list[str]:
    """Renew the image. Returns a line for each changed package: `name old → new`.

    Raises:
        ImageError: a step failed.
    """
    old = packages_in(client, ensure_worker_image(client, progress))["debian"]
    new = packages_in(client, renew_worker_image(client, progress))["debian"]
    if old != new:
        remove_superseded(client, {"ci-base": None, "ci": None})
    return list(changes(old, new))


def main() -> int:
    """Renew the image and print the changes. Returns 3 where this machine can't."""
    try:
        print(*(update(engine.connect()) or ["worker image: nothing changed"]), sep="\n")
    except (engine.EngineError, ImageError) as error:
        print(error, file=sys.stderr)
        return 3
    return 0


if __name__ == "__main__":
    sys.exit(main())
