"""The workers' containers while training goes on: one that dies is started anew, or left out, as was declared."""

from __future__ import annotations

import time
from collections.abc import Iterable

from testbed.emulation.containers import ContainerDied, ContainerRequest, Fleet
from testbed.emulation.testbed import Testbed
from testbed.run.directory import RunDirectory
from testbed.run.errors import RunFailed
from testbed.run.jobs import JOIN_DEADLINE_S
from testbed.run.service import ControllerProcess
from testbed.spec.experiment import ElasticSection

#: How often the engine is asked; it lists 16 containers in some 10 ms.
LOOK_S = 1.0

#: How often it is looked whether all have joined.
POLL_S = 0.1

#: So many of the last lines of a worker's log are quoted where it ended too early.
LOG_TAIL_LINES = 10


class Workers:
    """Looks after the containers of `requests`, and keeps their logs in the run's directory.

    Where the run is not elastic there is nothing to be done for one that dies: the controller ends the run then.
    """

    def __init__(
        self,
        testbed: Testbed,
        fleet: Fleet,
        requests: Iterable[ContainerRequest],
        elastic: ElasticSection | None,
        directory: RunDirectory,
    ) -> None:
        self._testbed = testbed
        self._fleet = fleet
        self._requests = {request.worker.name: request for request in requests}
        self._elastic = elastic
        self._logs = directory.path / "logs"
        self._left_out: set[str] = set()
        self._looked = time.monotonic()

    def start(self) -> None:
        """Start all of them on the testbed's network. RunFailed when one ends at once."""
        try:
            self._testbed.start(self._fleet, self._requests.values())
        except ContainerDied as error:
            raise RunFailed(str(error)) from error

    def wait_until_joined(self, controller: ControllerProcess) -> None:
        """Until the controller says that training goes on. RunFailed when a worker ends, or does not join in time."""
        deadline = time.monotonic() + JOIN_DEADLINE_S
        while (status := controller.admin.status())["state"] == "waiting":
            controller.check()
            gone = [name for name, runs in self._fleet.running().items() if not runs]
            if gone:
                raise RunFailed(f"{gone[0]} ended before it joined; {self._log_tail(gone[0])}")
            if time.monotonic() > deadline:
                missing = sorted(set(status["members"]) - set(status["joined"]))
                raise RunFailed(f"{', '.join(missing)} did not join within {JOIN_DEADLINE_S:g} s")
            time.sleep(POLL_S)
        if status["state"] == "failed":
            raise RunFailed(status["failure"])

    def end(self) -> None:
        """Save their logs and remove them, as long as the controller is there."""
        try:
            for worker in self._fleet.running():
                self._save_log(worker)
        finally:
            self._fleet.remove()

    def kill(self, worker: str) -> None:
        """End a container at once, as a crash would."""
        self._fleet.kill(worker)

    def look(self) -> list[str]:
        """Whose container was started anew now, since it had died."""
        if self._elastic is None or time.monotonic() - self._looked < LOOK_S:
            return []
        self._looked = time.monotonic()
        dead = [name for name, runs in self._fleet.running().items() if not runs and name not in self._left_out]
        crashed = [name for name in dead if self._fleet.exit_code(name) != 0]
        self._left_out |= set(dead) - set(crashed)  # done
        if self._elastic.lost == "leave":
            self._left_out |= set(crashed)
            return []
        for name in crashed:
            self._save_log(name)
            pid = self._fleet.restart(self._requests[name])
            self._testbed.network.leave([name])
            self._testbed.network.join({name: pid})
        return crashed

    def _log_tail(self, worker: str) -> str:
        lines = self._fleet.logs(worker).decode(errors="replace").splitlines()[-LOG_TAIL_LINES:]
        return "its log ends with:\n" + "\n".join(lines)

    def _save_log(self, worker: str) -> None:
        """Those of a worker's earlier containers stand before it."""
        with (self._logs / f"{worker}.log").open("ab") as file:
            file.write(self._fleet.logs(worker))
