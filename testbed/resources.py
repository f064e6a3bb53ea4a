"""Files that come with the package: presets, the recipes of images, the lock of packages; and where builds are kept.

In a checkout these files are used where they are edited. A wheel carries a copy of them in `testbed/share`
(`setup.py`), and keeps what it builds in a cache, since the installed package may not be writable.

This module needs the standard library alone: what it names is needed before an environment exists.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

#: The version of the package, of the wheel and of the images.
__version__ = "0.2.0"

PACKAGE = Path(__file__).resolve().parent
IS_CHECKOUT = (PACKAGE.parent / "setup.sh").is_file() and (PACKAGE.parent / "pyproject.toml").is_file()

#: The folder that has pyproject.toml, requirements.lock, setup.sh, containers/ and the presets.
SHARE = PACKAGE.parent if IS_CHECKOUT else PACKAGE / "share"

#: The command that installs what is missing.
SETUP = "make setup" if IS_CHECKOUT else "testbed setup"

#: The folders of presets, by what a preset of each is.
PRESETS = {"experiment": "experiments", "topology": "topologies"}


def cache() -> Path:
    """Return the folder in which an installed package of this version keeps what it builds."""
    if os.geteuid() == 0:
        return Path("/var/cache/testbed") / __version__
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "testbed" / __version__


#: The folder for compiled programs, downloaded wheels and logs of set-up.
BUILD = SHARE / "build" if IS_CHECKOUT else cache()


def presets(kind: str) -> Iterator[Path]:
    """Yield the files of the presets of a kind, a key of PRESETS, by name."""
    yield from sorted((SHARE / PRESETS[kind]).glob("*.yaml"))


def preset_or_file(kind: str, path: Path, folder: Path = Path()) -> Path:
    """Return the preset's file where `path` is the name of a preset of this kind and of no file in `folder`.

    Else return the path in `folder`. A folder of a preset's name may be there: it holds no experiment and no topology.
    """
    file = folder / path
    preset = next((each for each in presets(kind) if each.stem == str(path)), None)
    return preset if preset is not None and (file.is_dir() or not file.exists()) else file
