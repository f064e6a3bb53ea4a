"""The workers' containers where they are on several hosts: each host has its own engine, and those of its sites."""

from __future__ import annotations

import signal
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from testbed.emulation.containers.fleet import ContainerRequest, Fleet
from testbed.emulation.containers.limits import ContainerLimits
from testbed.emulation.process import ProcessIdentity
from testbed.scaleout.split.split import SplitHosts


class SplitFleet(Fleet):
    """What a Fleet is to who runs a network, done by the hosts that `host_of` names, worker by worker."""

    def __init__(self, hosts: SplitHosts, host_of: Mapping[str, str]) -> None:
        """Makes the worker image on every host that lacks it. EngineError, ImageError."""
        self._hosts, self._host_of = hosts, host_of
        # The first one alone: hosts may share a folder, in which what images need is made once.
        hosts.call(next(iter(hosts.hosts)), "worker_image")
        made = hosts.each("worker_image")
        self.image = ", ".join(sorted(set(made.values())))

    def image_record(self) -> dict[str, Any]:
        """Return the record of the first host's image: hosts make theirs by one lock."""
        return dict(self._hosts.call(next(iter(self._hosts.hosts)), "image_record"))

    def start(self, requests: Iterable[ContainerRequest]) -> Mapping[str, ProcessIdentity]:
        """Processes are their hosts' own, so none is returned. ContainerDied when one has ended."""
        shares: dict[str, list[ContainerRequest]] = {name: [] for name in self._hosts.hosts}
        for request in requests:
            shares[self._host_of[request.worker.name]].append(request)
        self._hosts.each("start", lambda host: (shares[host],))
        return {}

    @contextmanager
    def replacing(self, workers: Iterable[str]) -> Iterator[None]:
        """A run's swap keeps its workers."""
        if list(workers):
            raise NotImplementedError("workers of a network that is split keep their limits")
        yield

    def kill(self, worker: str, sent: signal.Signals = signal.SIGKILL) -> None:
        self._of(worker, "kill", sent)

    @property
    def limits(self) -> ContainerLimits | None:
        """Each host says its own in its log; together they are none."""
        return None

    def death(self, worker: str) -> str:
        return str(self._of(worker, "death"))

    def exit_code(self, worker: str) -> int | None:
        code: int | None = self._of(worker, "exit_code")
        return code

    def restart(self, request: ContainerRequest) -> ProcessIdentity:
        """Another container in its place, on its host's part of the network."""
        name = request.worker.name
        first: ProcessIdentity = self._hosts.call(self._host_of[name], "restart", request)
        return first

    def logs(self, worker: str) -> bytes:
        return bytes(self._of(worker, "logs"))

    def running(self) -> dict[str, bool]:
        found: dict[str, bool] = {}
        for running in self._hosts.each("running").values():
            found |= running
        return found

    def drop(self, workers: Iterable[str]) -> None:
        for worker in workers:
            self._hosts.call(self._host_of[worker], "fleet.drop", [worker])

    def remove(self) -> None:
        """Hosts remove theirs as they end, after their logs were asked for."""

    def _of(self, worker: str, method: str, *arguments: Any) -> Any:
        return self._hosts.call(self._host_of[worker], f"fleet.{method}", worker, *arguments)
