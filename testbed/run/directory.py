"""A run's directory: `runs/<id>/`, and `runs/latest` that points to the newest."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

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
        self._files: dict[str, IO[str]] = {}
        self._lock = threading.Lock()
        latest = root / "latest"
        latest.unlink(missing_ok=True)
        latest.symlink_to(name)

    def append(self, file: str, record: Mapping[str, Any]) -> None:
        """Add a line to a JSONL file; any thread may."""
        with self._lock:
            if file not in self._files:
                self._files[file] = (self.path / file).open("a", encoding="utf-8", buffering=1)
            self._files[file].write(json.dumps(record, separators=(",", ":")) + "\n")

    def write(self, file: str, value: Mapping[str, Any]) -> None:
        """Write a whole JSON file."""
        (self.path / file).write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")

    def read(self, file: str) -> list[dict[str, Any]]:
        """The lines of a JSONL file; none when it was never written, the last left out when it was cut short."""
        path = self.path / file
        if not path.exists():
            return []
        with self._lock:
            if file in self._files:
                self._files[file].flush()
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def close(self) -> None:
        """Close the files, and give them to the user who called sudo."""
        for file in self._files.values():
            file.close()
        if owner := os.environ.get("SUDO_UID"):
            group = int(os.environ.get("SUDO_GID", owner))
            for path in (self.path.parent, self.path.parent / "latest", self.path, *self.path.rglob("*")):
                os.chown(path, int(owner), group, follow_symlinks=False)
