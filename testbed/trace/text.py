"""The text of a file that a user names, be it what it may."""

from __future__ import annotations

from pathlib import Path

from testbed.trace.trace import TraceError

#: Of a trace: ten million packets of a packet-delivery file, or a million rows of CSV. As Python values they take
#: twenty times as much memory, and ten seconds.
MOST_BYTES = 64 * 2**20


def text_of(path: Path, most_bytes: int) -> str:
    """What the file holds, as UTF-8. OSError, or ValueError where it is none or longer (`/dev/zero` has no end)."""
    with path.open("rb") as file:
        data = file.read(most_bytes + 1)
    if len(data) > most_bytes:
        raise ValueError(f"it is longer than {most_bytes / 2**20:g} MiB")
    return data.decode("utf-8")


def read_text(path: Path) -> str:
    """What a trace file holds. TraceError names the file when it cannot be read."""
    try:
        return text_of(path, MOST_BYTES)
    except FileNotFoundError:
        raise TraceError(f"{path}: there is no such trace; check the path", rule="missing", file=path) from None
    except (OSError, ValueError) as error:  # ValueError: too long, no UTF-8, or a path that no file can have
        raise TraceError(f"{path}: cannot be read as text: {error}", rule="unreadable", file=path) from error
