"""The text that containers/documentation.py makes of Debian's documentation, where it was prepared on this machine.

It is made when somebody asks for it (`make documentation`): it takes a mirror of Debian 12's packages, and 15 MB.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from testbed.emulation.errors import EmulationError
from testbed.resources import BUILD

DOCUMENTATION = BUILD / "documentation"
INDEX = "documentation.json"
FILES = (INDEX, "text.txt")


class DocumentationError(EmulationError):
    """The documentation was not prepared; the text says how it is."""


def entries() -> dict[str, Path | None]:
    """What an image's build takes of it, by names; an empty folder where it was not prepared."""
    if not (DOCUMENTATION / INDEX).exists():
        return {"documentation": None}
    return {f"documentation/{name}": DOCUMENTATION / name for name in FILES}


def described() -> dict[str, Any]:
    """Its SHA-256, characters and packages with their versions and licences. DocumentationError where it is missing."""
    try:
        found: dict[str, Any] = json.loads((DOCUMENTATION / INDEX).read_text())
    except FileNotFoundError:
        raise DocumentationError(
            f"The experiment uses `dataset: documentation`, which is not in {DOCUMENTATION}: "
            "run `make documentation` to prepare it from packages of Debian 12."
        ) from None
    return found


def link_into(folder: Path) -> None:
    """Have it lie in a folder of data sets, where it was prepared."""
    if (DOCUMENTATION / INDEX).exists():
        (folder / "documentation").symlink_to(DOCUMENTATION)
