"""Holders of the workers' network namespaces: containers (`Fleet`), or bare namespaces (`Namespaces`)."""

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
    """The interface that a testbed needs: containers or namespaces, one for each worker."""

    def start(self, requests: Iterable[ContainerRequest]) -> Mapping[str, ProcessIdentity]:
        """Start a container or namespace for each request; return the process or thread holding it, by worker."""

    def replacing(self, workers: Iterable[str]) -> AbstractContextManager[None]:
        """Allow replacements for these workers inside the context. An error in it restores the state before."""

    def drop(self, workers: Iterable[str]) -> None:
        """Remove the containers or namespaces of these workers."""

    def remove(self) -> None:
        """Remove all containers or namespaces, also those of a broken start or a killed testbed of the same name."""


class Namespaces:
    """Workers that are bare network namespaces, in which programs of this machine can run.

    Nothing is started in them, and nothing limits the programs that run in them.
    """

    def __init__(self) -> None:
        self._held: dict[str, Namespace] = {}

    def start(self, requests: Iterable[ContainerRequest]) -> Mapping[str, ProcessIdentity]:
        """Make a namespace for each request, and return the thread that holds it, by worker."""
        made = {}
        for request in requests:
            name = request.worker.name
            self._held[name] = Namespace()
            made[name] = self._held[name].holder
        return made

    @contextmanager
    def replacing(self, workers: Iterable[str]) -> Iterator[None]:
        """Allow replacements for these workers inside the context. An error in it restores the state before."""
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
        """Close the namespaces of these workers."""
        for worker in workers:
            self._held.pop(worker).close()

    def remove(self) -> None:
        """Close all namespaces."""
        self.drop(list(self._held))


def idle_requests(workers: Iterable[Worker], files: Path | None = None) -> Iterator[ContainerRequest]:
    """Yield requests for containers in which nothing runs until a program is started; `files` are visible there."""
    return (ContainerRequest(worker, None, files=files) for worker in workers)


@contextmanager
def expected_to_start() -> Iterator[None]:
    """Turn any failure to start idle containers into an EngineError: the engine or a worker's limits are at fault."""
    try:
        yield
    except engine.EngineError:
        raise
    except ContainerDied as error:
        raise engine.EngineError(f"a worker's container did not start: {error}") from error
    except engine.ENGINE_ERRORS as error:
        raise engine.EngineError(f"a worker's container did not start: {engine.explained(error)}") from error
