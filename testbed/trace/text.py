"""The text of a trace file."""

from __future__ import annotations

from pathlib import Path

from testbed.trace.trace import TraceError


def read_text(path: Path) -> str:
    """What the file holds, as UTF-8. TraceError names the file when it cannot be read."""
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise TraceError(f"{path}: there is no such trace; check the path") from None
    except (OSError, ValueError) as error:  # ValueError: no UTF-8, or a path that no file can have
        raise TraceError(f"{path}: cannot be read as text: {error}") from error
