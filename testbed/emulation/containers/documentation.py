"""The data set that containers/documentation.py makes from Debian's documentation, if it was prepared on this machine.

`make documentation` prepares it: that needs a mirror of Debian 12's packages, and takes 15 MB.
"""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import Any

from testbed.emulation.errors import EmulationError
from testbed.resources import BUILD, IS_CHECKOUT, SHARE

DOCUMENTATION = BUILD / "documentation"
INDEX = "documentation.json"
FILES = (INDEX, "text.txt")


class DocumentationError(EmulationError):
    """The data set was not prepared; the text says how to prepare it."""


def entries() -> dict[str, Path | None]:
    """Return the data set's files for an image's build, by name; an empty folder if it was not prepared."""
    if not (DOCUMENTATION / INDEX).exists():
        return {"documentation": None}
    return {f"documentation/{name}": DOCUMENTATION / name for name in FILES}


def described() -> dict[str, Any]:
    """Return the data set's SHA-256, characters, and packages with versions and licences.

    Raises:
        DocumentationError: It was not prepared.
    """
    try:
        found: dict[str, Any] = json.loads((DOCUMENTATION / INDEX).read_text())
    except FileNotFoundError:
        raise DocumentationError(
            f"`dataset: documentation` is not in {DOCUMENTATION}: "
            f"run `{_preparation()}`, which prepares it from packages of Debian 12"
        ) from None
    return found


def _preparation() -> str:
    """Return the command that prepares the data set. A wheel has the program, and no Makefile."""
    if IS_CHECKOUT:
        return "make documentation"
    return shlex.join([sys.executable, str(SHARE / "containers" / "documentation.py"), str(DOCUMENTATION)])


def link_into(folder: Path) -> None:
    """Link the data set into a folder of data sets, if it was prepared."""
    if (DOCUMENTATION / INDEX).exists():
        (folder / "documentation").symlink_to(DOCUMENTATION)
