"""What a benchmark's cells were measured to be, kept from one run of it to the next."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.support.table import progress
from testbed.run.verdict import STEP_OVERRUN_SHARE
from testbed.telemetry.store import write_json


class Kept:
    """Cells' figures by the cells' keys, in a file."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def read(self) -> dict[str, Any]:
        """All that were kept so far."""
        return dict(json.loads(self._file.read_text())) if self._file.exists() else {}

    def add(self, key: str, found: Mapping[str, Any], containers: bool) -> None:
        """Keep a cell; not one in which more than STEP_OVERRUN_SHARE of the rounds were `late`.

        Compute was not what is declared then, and seeds are no pairs.
        """
        if found["late"] > STEP_OVERRUN_SHARE:
            progress(
                f"not kept: {found['late']:.0%} of its rounds had late steps, other work held the host up; run it again"
            )
            return
        write_json(self._file, {**self.read(), key: {**found, "containers": containers}})
