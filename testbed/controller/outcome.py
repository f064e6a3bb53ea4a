"""The controller's account of its run: the status during the run, and the outcome at its end."""

from __future__ import annotations

import logging
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

from testbed.controller.model.coordinator import Coordinator
from testbed.controller.model.spec import ControllerSpec
from testbed.protocol import Hello
from testbed.telemetry.store import FORMAT, write_json

log = logging.getLogger(__name__)

State = Literal["waiting", "running", "done", "failed"]


class ControlledRun:
    """The state, the status and the outcome of one run: the base class of the live and of the simulated controller."""

    def __init__(self, spec: ControllerSpec, coordinator: Coordinator) -> None:
        self.spec = spec
        self.coordinator = coordinator
        self.state: State = "waiting"
        #: Why the run failed, or empty.
        self.failure = ""
        #: The last hello of each member that has joined.
        self.hellos: dict[str, Hello] = {}

    def status(self) -> dict[str, Any]:
        """Return the run's status. Times are Unix seconds, rates are bit/s of frames."""
        return {
            "state": self.state,
            "failure": self.failure,
            "members": list(self.spec.members),
            "joined": sorted(self.hellos),
            "left": sorted(self.coordinator.goodbyes),
            "membership_events": self._events(),
            "rounds": self.spec.rounds,
            **self.coordinator.status(),
        }

    def write_final(self, path: Path) -> None:
        """Write the outcome to a file. If the disk refuses or the file's folder is gone, only the log says so."""
        try:
            write_json(path, self.final(), path.parent)
        except OSError as error:
            log.error("the run's outcome can't be written to %s: %s", path, error)

    def final(self) -> dict[str, Any]:
        """Return the run's outcome at its end, as plain values for JSON.

        `identical` is true if all present members said goodbye with the same digest of their parameters; null if
        members have no parameters.
        """
        goodbyes, present = self.coordinator.goodbyes, self.coordinator.present
        digests = {goodbye.digest for goodbye in goodbyes.values()}
        return {
            "format": FORMAT,
            "state": self.state,
            "failure": self.failure,
            "identical": None if digests == {""} else len(digests) == 1 and goodbyes.keys() >= present,
            "membership_events": self._events(),
            "members": {
                member: {
                    "device": self.hellos[member].device,
                    "rounds": goodbye.rounds,
                    "digest": goodbye.digest,
                    "metrics": dict(goodbye.metrics),
                    "error": goodbye.error,
                }
                for member, goodbye in goodbyes.items()
            },
            **self.coordinator.final(),
        }

    def _events(self) -> list[dict[str, Any]]:
        return [asdict(event) for event in self.coordinator.events]
