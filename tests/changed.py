"""`python -m tests.changed [COMMIT]` prints the test files and folders of what has changed since a commit.

Tests mirror the source: `testbed/spec/load.py` is tested by `tests/spec/test_load.py`, or else by all of `tests/spec`.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

#: Tests of the whole source, which take seconds.
ALWAYS = ("tests/test_imports.py", "tests/test_words.py")


def mirrored(changed: Iterable[str], root: Path = ROOT) -> list[str]:
    """Return the tests of these files, by paths from the root, sorted and each once."""
    found = {*map(Path, ALWAYS), *(test for file in changed for test in _tests_of(Path(file), root))}
    return sorted(str(test) for test in found if not found.intersection(test.parents))


def _tests_of(file: Path, root: Path) -> Iterator[Path]:
    if file.suffix not in (".py", ".c"):
        return
    if file.parts[0] == "tests":
        own = file.with_name(f"test_{file.name}")
        if file.name.startswith("test_"):
            own = file
        if (root / own).is_file():
            yield own
        elif not file.name.startswith("test_"):
            yield next(_there(file.parent, root))
    elif file.parts[0] in ("testbed", "benchmarks", "containers"):
        room = Path("tests", *(file.parts[1:-1] if file.parts[0] == "testbed" else file.parts[:-1]))
        mirror = room / f"test_{file.name}"
        yield mirror if (root / mirror).is_file() else next(_there(room, root))


def _there(path: Path, root: Path) -> Iterator[Path]:
    """Return the folder, or its nearest ancestor that exists."""
    yield path if (root / path).exists() else next(_there(path.parent, root))


def _git(*words: str) -> list[str]:
    """Return the lines that a command of git prints."""
    command = ["git", "-c", f"safe.directory={ROOT}", "-C", str(ROOT), *words]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()


def main() -> int:
    """Print the tests in a line. Returns 2 where git cannot tell what has changed."""
    since = sys.argv[1] if len(sys.argv) > 1 else "HEAD"
    try:
        changed = [*_git("diff", "--name-only", since, "--"), *_git("ls-files", "--others", "--exclude-standard")]
    except (OSError, subprocess.CalledProcessError) as error:
        why = error.stderr.strip() if isinstance(error, subprocess.CalledProcessError) else error
        print(f"{why}\ngit must know what changed since {since}: name a commit here, SINCE=HEAD", file=sys.stderr)
        return 2
    print(*mirrored(changed))
    return 0


if __name__ == "__main__":
    sys.exit(main())
