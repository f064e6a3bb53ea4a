"""What holds the workers' network namespaces: containers (`Fleet`), or nothing but the namespaces themselves."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Protocol

from testbed.emulation.containers import engine
from testbed.emulation.containers.fleet import ContainerDied, ContainerRequest
from testbed.emulation.network.namespace import Namespace
from testbed.emulation.process import ProcessIdentity
from testbed.spec.topology import Worker


class Holders(Protocol):
    """What a testbed needs of them."""

    def start(self, requests: Iterable[ContainerRequest]) -> Mapping[str, ProcessIdentity]:
        """Make one for each request; worker name → what holds its namespace, a process or a thread."""

    def replacing(self, workers: Iterable[str]) -> AbstractContextManager[None]:
        """While inside, others may be made, also for these workers. Left by an error, all is as it was before."""

    def drop(self, workers: Iterable[str]) -> None:
        """Remove those of these workers."""

    def remove(self) -> None:
        """Remove all, also what a broken start or a killed testbed of the same name left."""


class Namespaces:
    """Workers that are network namespaces and nothing else: programs of this machine can run in them.

    Nothing is started in them, and nothing limits what runs there.
    """

    def __init__(self) -> None:
        self._held: dict[str, Namespace] = {}

    def start(self, requests: Iterable[ContainerRequest]) -> Mapping[str, ProcessIdentity]:
        made = {}
        for request in requests:
            name = request.worker.name
            self._held[name] = Namespace()
            made[name] = self._held[name].holder
        return made

    @contextmanager
    def replacing(self, workers: Iterable[str]) -> Iterator[None]:
        before, aside = dict(self._held), [self._held.pop(worker) for worker in workers]
        try:
            yield
        except BaseException:
            self.drop([name for name, namespace in self._held.items() if before.get(name) is not namespace])
            self._held = before
            raise
        for namespace in aside:
            namespace.close()

    def drop(self, workers: Iterable[str]) -> None:
        for worker in workers:
            self._held.pop(worker).close()

    def remove(self) -> None:
        self.drop(list(self._held))


def idle_requests(workers: Iterable[Worker], files: Path | None = None) -> Iterator[ContainerRequest]:
    """Containers in which nothing runs until something is started; it then finds `files` there."""
    return (ContainerRequest(worker, None, files=files) for worker in workers)


@contextmanager
def expected_to_start() -> Iterator[None]:
    """Where a container that waits does not start, something is wrong with the engine or the worker's limits."""
    try:
        yield
    except engine.EngineError:
        raise
    except ContainerDied as error:
        raise engine.EngineError(f"a worker's container does not start: {error}") from error
    except engine.ENGINE_ERRORS as error:
        raise engine.EngineError(f"a worker's container does not start: {engine.explained(error)}") from error
