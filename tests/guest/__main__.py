"""`python -m tests.guest [pytest arguments]`: run the tests marked `guest` in the guest kernel."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from testbed.emulation.engine import EngineError
from testbed.emulation.image import ImageError
from tests.guest.disk import engine_disk
from tests.guest.kernel import REPOSITORY, GuestError, test_in_guest

#: The whole lane takes some three minutes; the guest is switched off when it hangs.
LIMIT_S = 480

MARK = re.compile(r"\bmark\.guest\b")


def guest_tests() -> list[str]:
    """The files with tests so marked, or whose folder's conftest marks some: importing all the others takes the
    guest longer than some of its tests."""
    root = REPOSITORY / "tests"
    folders = {file.parent for file in root.rglob("conftest.py") if _marks(file)}
    found = [file for file in sorted(root.rglob("test_*.py")) if file.parent in folders or _marks(file)]
    return [str(file.relative_to(REPOSITORY)) for file in found]


def _marks(file: Path) -> bool:
    return MARK.search(file.read_text()) is not None


if __name__ == "__main__":
    try:
        result = test_in_guest(["-m", "guest", *(sys.argv[1:] or guest_tests())], limit_s=LIMIT_S, disk=engine_disk())
    except (EngineError, GuestError, ImageError) as error:
        sys.exit(str(error))
    print(result.console)
    sys.exit(result.status)
