"""Record files of a run: one JSON object per line, appended and never rewritten."""

from __future__ import annotations

import json
import logging
import math
import os
from collections.abc import Iterator, Mapping
from errno import ENOENT
from pathlib import Path
from typing import Any

from testbed.atomic_file import write_text

log = logging.getLogger(__name__)

#: The version of `manifest.json`, `summary.json` and the controller's `final.json`, in their field `format`.
#: Files of version 1 lack the field, and say `passages` for `membership_events` and `breaches` for `violations`.
FORMAT = 2


def in_newest_format(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return a manifest, a summary or an outcome with the names of today's version, whichever version wrote it."""
    if record.get("format", 1) != 1:
        return dict(record)
    newest = {("membership_events" if name == "passages" else name): value for name, value in record.items()}
    if isinstance(sync := record.get("sync"), dict) and isinstance(sync.get("gap"), dict):
        newest["sync"] = {**sync, "gap": _of_gaps(sync["gap"])}
    if isinstance(record.get("gaps"), dict):
        newest["gaps"] = _of_gaps(record["gaps"])
    return newest


def _of_gaps(gaps: Mapping[str, Any]) -> dict[str, Any]:
    return {("violations" if name == "breaches" else name): value for name, value in gaps.items()}


class Records:
    """A file to which records are appended, one JSON object a line.

    An appended record survives the end of the process. After a power failure, records are missing from the end.
    A last line that a crash cut short is terminated first, so that the next record is not lost with it.
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("a+b", buffering=0)
        if self._file.seek(0, os.SEEK_END):
            self._file.seek(-1, os.SEEK_END)
            if self._file.read(1) != b"\n":
                self._write(b"\n")

    def append(self, record: Mapping[str, Any]) -> int:
        """Append a whole record, or nothing. Return the bytes of its line.

        Raises:
            OSError: The record could not be written; names the file.
            TypeError: The record holds a value that JSON cannot represent.
        """
        try:
            text = json.dumps(record, separators=(",", ":"), allow_nan=False)
        except (ValueError, TypeError):  # most records need no copy
            text = json.dumps(finite(record), separators=(",", ":"), allow_nan=False)
        line = text.encode() + b"\n"
        self._write(line)
        return len(line)

    def _write(self, line: bytes) -> None:
        before = os.fstat(self._file.fileno()).st_size
        try:
            while line:  # a disk that becomes full writes a part first
                line = line[self._file.write(line) :]
        except OSError as error:
            self._file.truncate(before)
            raise OSError(error.errno, error.strerror, self._file.name) from error

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def read_records(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the records of a file in order; none when the file is missing.

    A line that holds no record, such as one that a crash cut short, is left out with a warning in the log.
    """
    for number, record in enumerate(read_lines(path), start=1):
        if record is None:
            log.warning("%s: line %d is cut short or damaged, and is left out", path, number)
        else:
            yield record


def read_lines(path: Path) -> Iterator[dict[str, Any] | None]:
    """Yield the record of each line; nothing when the file is missing.

    A line that holds no record is None, such as one that a crash cut short.
    """
    if not path.exists():
        return
    with path.open(encoding="utf-8", errors="replace") as file:
        for line in file:
            try:
                record = _parsed(line)
            except ValueError:
                record = None
            yield record if isinstance(record, dict) else None


def read_json(path: Path) -> Any:
    """Return the value of a JSON file.

    Raises:
        OSError: The file can't be read.
        ValueError: The file is not JSON, or its brackets nest too deep.
    """
    return _parsed(path.read_text(encoding="utf-8"))


def write_json(path: Path, value: Mapping[str, Any], root: Path | None = None) -> None:
    """Write a JSON file, and its folder where that is missing; a reader sees the old file or the whole new one.

    A folder `root` above the file is not made: the user may have removed the run whose directory it is.

    Raises:
        OSError: The file can't be written, or `root` is not there.
    """
    if root is not None and not root.is_dir():
        raise FileNotFoundError(ENOENT, "the folder is gone", str(root))
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, json.dumps(finite(value), indent=1, allow_nan=False) + "\n")


def finite(value: Any) -> Any:
    """Return `value` with None for each float that JSON cannot represent, such as the NaN of a diverged loss."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [finite(inner) for inner in value]
    return value


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("its brackets nest thousands deep") from None
