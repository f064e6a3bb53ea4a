"""The numbers of plans, and of the aborts between them."""

from __future__ import annotations

import json
from pathlib import Path

from testbed.telemetry.store import write_json


class Epochs:
    """Hands out epochs, and keeps the `newest` in a file before anybody is told of it.

    So a controller that is started anew knows which ones a member can have heard of, and takes nobody's word for it.
    `resumed`: the run had begun under a controller before this one.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self.resumed = file.exists()
        self.newest: int = json.loads(file.read_text())["newest"] if self.resumed else 0

    def begin(self) -> None:
        """The members are there: the run begins."""
        self._keep()

    def next(self) -> int:
        """One that no plan has."""
        self.newest += 1
        self._keep()
        return self.newest

    def _keep(self) -> None:
        write_json(self._file, {"newest": self.newest})
