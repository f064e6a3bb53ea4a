"""Renew the Debian packages of the worker image, and print the changes: the second half of `make update`.

    python -m containers.update

The image for CI has a base of its own. It is removed if anything changed, and the next `make smoke` builds it from the
mirror's packages of that time.
"""

from __future__ import annotations

import sys

from testbed.emulation.containers import engine
from testbed.emulation.containers.image import ensure_worker_image, packages_in, remove_superseded, renew_worker_image
from testbed.emulation.containers.requirements import changes
from testbed.emulation.errors import run_program


def main() -> None:
    """Renew the image, and print a line for each changed package: `name old → new`."""
    client = engine.connect()
    old = packages_in(client, ensure_worker_image(client))["debian"]
    new = packages_in(client, renew_worker_image(client, print))["debian"]
    if old != new:
        remove_superseded(client, {"ci-base": None, "ci": None})
    print(*(list(changes(old, new)) or ["worker image: nothing changed"]), sep="\n")


if __name__ == "__main__":
    sys.exit(run_program(main))
