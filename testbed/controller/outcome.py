"""The controller's account of its run: the status during the run, and the outcome at its end."""

from __future__ import annotations

import logging
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal, Protocol

from testbed.controller.model.coordinator import Coordinator
from testbed.controller.model.spec import ControllerSpec
from testbed.protocol import Hello
from testbed.telemetry.store import FORMAT, write_json

log = logging.getLogger(__name__)

State = Literal["waiting", "running", "done", "failed"]


class Controller(Protocol):
    """The part of the controller's service that `status` and `final` read."""

    spec: ControllerSpec
    state: State
    #: Why the run failed, or empty.
    failure: str
    #: The last hello of each member that has joined.
    hellos: dict[str, Hello]

    @property
    def coordinator(self) -> Coordinator:
        """The coordinator of the run's members."""


def status(controller: Controller) -> dict[str, Any]:
    """Return the run's status. Times are Unix seconds, rates are bit/s of frames."""
    return {
        "state": controller.state,
        "failure": controller.failure,
        "members": list(controller.spec.members),
        "joined": sorted(controller.hellos),
        "left": sorted(controller.coordinator.goodbyes),
        "membership_events": _events(controller),
        "rounds": controller.spec.rounds,
        **controller.coordinator.status(),
    }


def write_final(path: Path, controller: Controller) -> None:
    """Write the outcome to a file. If the disk refuses, only the log says so."""
    try:
        write_json(path, final(controller))
    except OSError as error:
        log.error("the run's outcome can't be written to %s: %s", path, error)


def final(controller: Controller) -> dict[str, Any]:
    """Return the run's outcome at its end, as plain values for JSON."""
    goodbyes, present = controller.coordinator.goodbyes, controller.coordinator.present
    digests = {goodbye.digest for goodbye in goodbyes.values()}
    return {
        "format": FORMAT,
        "state": controller.state,
        "failure": controller.failure,
        "identical": None if digests == {""} else len(digests) == 1 and goodbyes.keys() >= present,
        "membership_events": _events(controller),
        "members": {
            member: {
                "device": controller.hellos[member].device,
                "rounds": goodbye.rounds,
                "digest": goodbye.digest,
                "metrics": dict(goodbye.metrics),
                "error": goodbye.error,
            }
            for member, goodbye in goodbyes.items()
        },
        **controller.coordinator.final(),
    }


def _events(controller: Controller) -> list[dict[str, Any]]:
    return [asdict(event) for event in controller.coordinator.events]
