"""Records of a run: one JSON object a line, appended as they come and never rewritten."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any


class Records:
    """Appends records to a file, a line each. Line-buffered: what was appended survives the process.

    A last line that a crash cut short is ended first, so that the next record is not lost with it.
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        torn = path.exists() and not _ends_with_newline(path)
        self._file = path.open("a", buffering=1, encoding="utf-8")
        if torn:
            self._file.write("\n")

    def append(self, record: Mapping[str, Any]) -> int:
        """Add a record; the characters that it takes. TypeError when it holds what JSON has no word for."""
        return self._file.write(json.dumps(finite(record), separators=(",", ":"), allow_nan=False) + "\n")

    def close(self) -> None:
        """Close the file; nothing is appended afterwards."""
        self._file.close()

    def __enter__(self) -> Records:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def read_records(path: Path) -> Iterator[dict[str, Any]]:
    """The records of a file, in order; none when there is no file. A line that a crash cut short is passed over."""
    if not path.exists():
        return
    with path.open(encoding="utf-8", errors="replace") as file:
        for line in file:
            try:
                record = json.loads(line)
            except ValueError:
                continue
            if isinstance(record, dict):
                yield record


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write a whole JSON file so that a reader sees the old or the new one, never half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(path.name + ".new")
    fresh.write_text(json.dumps(finite(value), indent=1, allow_nan=False) + "\n", encoding="utf-8")
    fresh.replace(path)


def finite(value: Any) -> Any:
    """`value` with None for every float that JSON can't hold: the loss of a training that diverged is NaN."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [finite(inner) for inner in value]
    return value


def _ends_with_newline(path: Path) -> bool:
    with path.open("rb") as file:
        if file.seek(0, os.SEEK_END) == 0:
            return True
        file.seek(-1, os.SEEK_END)
        return file.read(1) == b"\n"
