"""`python -m tests.marked MARK…`: the files with tests that bear one of these marks, without importing any.

Importing all the others, PyTorch and the planner with them, takes 25 s of processor time, and in the guest kernel more
than some of its tests.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

TESTS = Path(__file__).parent


def marked(marks: Iterable[str]) -> Iterator[str]:
    """By paths from the root, in order: files that name a mark. So no conftest is to have a fixture that bears one."""
    names = re.compile(rf"\bmark\.(?:{'|'.join(marks)})\b")
    for file in sorted(TESTS.rglob("test_*.py")):
        if names.search(file.read_text()):
            yield str(file.relative_to(TESTS.parent))


if __name__ == "__main__":
    print(*marked(sys.argv[1:]), sep="\n")
