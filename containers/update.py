"""Renews the Debian packages of the worker image, and says what changed: the second half of `make update`.

    python -m containers.update

The image for CI, which stands on a base of its own, goes: the next `make smoke` makes it of what the mirror
has by then.
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
    """What changed, a line a package: `name old → new`. Raises ImageError when a step fails."""
    old = packages_in(client, ensure_worker_image(client, progress))["debian"]
    new = packages_in(client, renew_worker_image(client, progress))["debian"]
    if old != new:
        remove_superseded(client, {"ci-base": None, "ci": None})
    return list(changes(old, new))


def main() -> int:
    """Renew and print what changed; 3 where this machine can't."""
    try:
        print(*(update(engine.connect()) or ["worker image: nothing changed"]), sep="\n")
    except (engine.EngineError, ImageError) as error:
        print(error, file=sys.stderr)
        return 3
    return 0


if __name__ == "__main__":
    sys.exit(main())
