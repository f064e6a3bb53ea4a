"""What a controller says of its run: the state while it goes on, and what came of it at the end."""

from __future__ import annotations

import logging
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal, Protocol

from testbed.controller.model.coordinator import Coordinator
from testbed.controller.model.spec import ControllerSpec
from testbed.protocol import Hello
from testbed.telemetry.store import write_json

log = logging.getLogger(__name__)

State = Literal["waiting", "running", "done", "failed"]


class Controller(Protocol):
    """Whoever carries out what a coordinator asks for. `hellos` are what its members said as they came."""

    spec: ControllerSpec
    state: State
    failure: str
    hellos: dict[str, Hello]

    @property
    def coordinator(self) -> Coordinator:
        """Who decides."""


def status(controller: Controller) -> dict[str, Any]:
    """The state in short; times are Unix seconds, rates bit/s of frames as links were measured."""
    return {
        "state": controller.state,
        "failure": controller.failure,
        "members": list(controller.spec.members),
        "joined": sorted(controller.hellos),
        "left": sorted(controller.coordinator.goodbyes),
        "passages": _events(controller),
        "rounds": controller.spec.rounds,
        **controller.coordinator.progress.status(),
    }


def write_final(path: Path, controller: Controller) -> None:
    """Put on record what came of the run; where the disk does not let it, only the log says so."""
    try:
        write_json(path, final(controller))
    except OSError as error:
        log.error("what came of the run can't be recorded: %s", error)


def final(controller: Controller) -> dict[str, Any]:
    """What came of the run."""
    goodbyes, present = controller.coordinator.goodbyes, controller.coordinator.present
    digests = {goodbye.digest for goodbye in goodbyes.values()}
    return {
        "state": controller.state,
        "failure": controller.failure,
        "identical": None if digests == {""} else len(digests) == 1 and goodbyes.keys() >= present,
        "passages": _events(controller),
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
        **controller.coordinator.progress.final(),
    }


def _events(controller: Controller) -> list[dict[str, Any]]:
    return [asdict(event) for event in controller.coordinator.events]
