"""The workers' containers while training goes on: one that dies is started anew, or left out, as was declared."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from testbed.emulation.containers import ContainerRequest, Fleet
from testbed.emulation.network import Network
from testbed.spec.experiment import ElasticSection

#: How often the engine is asked; it lists 16 containers in some 10 ms.
LOOK_S = 1.0


class Workers:
    """Looks after the containers of `requests`. Where the run is not elastic there is nothing to be done for one that
    dies: the controller ends the run then. `save_log` is called before a container goes."""

    def __init__(
        self,
        fleet: Fleet,
        network: Network,
        requests: Iterable[ContainerRequest],
        elastic: ElasticSection | None,
        save_log: Callable[[str], None],
    ) -> None:
        self._fleet = fleet
        self._network = network
        self._requests = {request.worker.name: request for request in requests}
        self._elastic = elastic
        self._save_log = save_log
        self._left_out: set[str] = set()
        self._looked = time.monotonic()

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
            self._network.replace_worker(name, self._fleet.restart(self._requests[name]))
        return crashed
