"""The containers of an experiment that trains by a command: as its file describes them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from testbed.emulation.containers import engine
from testbed.emulation.containers.fleet import ContainerRequest, Fleet, ProgramContainers, ScratchSpace
from testbed.emulation.network.holders import idle_requests
from testbed.emulation.testbed import Testbed
from testbed.spec.experiment import Experiment


class ExperimentContainers:
    """What an experiment's command finds around it. SpecError where it may not read its files."""

    def __init__(self, experiment: Experiment) -> None:
        program, folder = experiment.spec.program, experiment.file.parent
        assert program is not None
        scratch = ScratchSpace(tmp_bytes=int(program.tmp), shm_bytes=int(program.shm), out_bytes=int(program.out))
        self._workers = experiment.topology.workers
        self._containers = ProgramContainers(folder / program.files, program.image_from(folder), scratch)
        self._containers.check()

    def fleet(self, testbed: Testbed) -> Fleet:
        """Where a testbed's workers will run. EngineError, ImageError, or SpecError for an image that is not there."""
        return Fleet.connected(testbed.name, testbed.control, self._containers)

    def requests(self) -> Iterator[ContainerRequest]:
        """Of each worker, in which nothing runs yet."""
        return idle_requests(self._workers, self._containers.files)

    def record(self, fleet: Fleet) -> dict[str, Any]:
        """For a manifest, once they are started."""
        limits = fleet.limits.record(self._workers) if fleet.limits else {}
        return {**fleet.image_record(), "limits": limits, "docker_client": engine.CLIENT_RECORD}
