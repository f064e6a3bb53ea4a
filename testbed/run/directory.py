"""A run's directory: `runs/<id>/`, and `runs/latest` that points to the newest."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from testbed.telemetry.store import Records, read_records, write_json

RUNS = Path("runs")


class RunDirectory:
    """Where one run writes. Lines are flushed as they come, so a killed run leaves what it had."""

    def __init__(self, experiment: str, root: Path = RUNS) -> None:
        """Make `<root>/<experiment>-<date>-<time>` and point `latest` at it."""
        stamp = time.strftime("%Y%m%d-%H%M%S")
        names = (f"{experiment}-{stamp}{suffix}" for suffix in ("", *(f"-{n}" for n in range(2, 100))))
        root.mkdir(parents=True, exist_ok=True)
        for name in names:
            try:
                (root / name).mkdir()
                break
            except FileExistsError:
                continue
        self.id = name
        self.path = root / name
        (self.path / "logs").mkdir()
        self._records: dict[str, Records] = {}
        self._lock = threading.Lock()
        latest = root / "latest"
        latest.unlink(missing_ok=True)
        latest.symlink_to(name)

    def append(self, file: str, record: Mapping[str, Any]) -> None:
        """Add a line to a JSONL file; any thread may."""
        with self._lock:
            if file not in self._records:
                self._records[file] = Records(self.path / file)
            self._records[file].append(record)

    def write(self, file: str, value: Mapping[str, Any]) -> None:
        """Write a whole JSON file."""
        write_json(self.path / file, value)

    def read(self, file: str) -> list[dict[str, Any]]:
        """The lines of a JSONL file; none when it was never written."""
        return list(read_records(self.path / file))

    def read_whole(self, file: str) -> dict[str, Any] | None:
        """A whole JSON file; None when it was never written."""
        path = self.path / file
        return dict(json.loads(path.read_text(encoding="utf-8"))) if path.exists() else None

    def close(self) -> None:
        """Close the files, and give them to the user who called sudo."""
        for records in self._records.values():
            records.close()
        if owner := os.environ.get("SUDO_UID"):
            group = int(os.environ.get("SUDO_GID", owner))
            for path in (self.path.parent, self.path.parent / "latest", self.path, *self.path.rglob("*")):
                os.chown(path, int(owner), group, follow_symlinks=False)
