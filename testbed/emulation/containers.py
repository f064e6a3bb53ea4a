"""The workers' containers: started side by side, labelled, with no network but what is moved in.

A container sees the emulated WAN and nothing else: network mode `none`, no capability, no new privileges, a user
that is not root, a read-only root with a small tmpfs. Control goes through a Unix socket in a mounted folder
that no other container sees.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import docker
from docker.errors import APIError, NotFound
from docker.models.containers import Container
from docker.types import DeviceRequest, Mount

from testbed.emulation import engine
from testbed.emulation.image import ensure_worker_image, packages_in
from testbed.emulation.label import LABEL
from testbed.spec.topology import Worker

#: Where a container finds its control socket's folder. (A mounted socket file would go stale with its server.)
CONTROL_FOLDER = "/run/testbed"

#: The engine handles this many starts at once; more only queue up in it.
PARALLEL = 8

#: Half of what a process gets by default (1024), so that the emulation itself is served first.
CPU_SHARES = 512

#: A thread whose start was interrupted is listed for good, though it never begins; one that does, begins sooner.
BEGIN_S = 1.0


class ContainerDied(RuntimeError):
    """A container's program ended at once; the text holds its log."""


@dataclass(frozen=True, slots=True)
class ContainerRequest:
    """What one worker's container runs: `command` are the arguments of `entrypoint`, or of the image's own."""

    worker: Worker
    command: Sequence[str]
    entrypoint: Sequence[str] | None = None


class Fleet:
    """The containers of one network. A context manager: leaving it removes them all, by label.

    Each sees a folder of its own in the folder `control`, read-only, as CONTROL_FOLDER: so the controller knows it.
    """

    def __init__(self, client: docker.DockerClient, network: str, image: str, control: Path) -> None:
        self.image = image
        self._client = client
        self._network = network
        self._control = control
        self._containers: dict[str, Container] = {}
        self._threads = f"start {network} "

    @classmethod
    def connected(cls, network: str, control: Path) -> Self:
        """Of the worker image, on the engine that answers. EngineError or ImageError where there is none."""
        client = engine.connect()
        return cls(client, network, ensure_worker_image(client, lambda _: None), control)

    def __enter__(self) -> Fleet:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()

    @property
    def packages(self) -> Mapping[str, Mapping[str, str]]:
        """The versions of what the containers' image holds: of Debian's packages and of Python's, by name."""
        return packages_in(self._client, self.image)

    def start(self, requests: Iterable[ContainerRequest]) -> Mapping[str, int]:
        """Start them all; worker name → pid of the container's first process. ContainerDied when one has ended."""
        with ThreadPoolExecutor(PARALLEL, thread_name_prefix=self._threads) as pool:
            return dict(pool.map(self._start, requests))

    def _start(self, request: ContainerRequest) -> tuple[str, int]:
        worker = request.worker
        control = self._control / worker.name
        control.mkdir(exist_ok=True)
        container = self._client.containers.create(
            self.image,
            list(request.command),
            entrypoint=list(request.entrypoint) if request.entrypoint else None,
            name=self._name(worker.name),
            hostname=worker.name,
            labels={LABEL: self._network},
            network_mode="none",
            cap_drop=["ALL"],
            security_opt=["no-new-privileges"],
            read_only=True,
            tmpfs={"/tmp": "size=64m"},
            mounts=[Mount(CONTROL_FOLDER, str(control), type="bind", read_only=True)],
            cpu_shares=CPU_SHARES,
            nano_cpus=int(worker.cpus * 1e9) if worker.cpus else None,
            mem_limit=worker.memory,
            device_requests=[DeviceRequest(count=worker.gpus, capabilities=[["gpu"]])] if worker.gpus else None,
        )
        self._containers[worker.name] = container
        container.start()
        container.reload()
        if container.status != "running":
            log = container.logs().decode(errors="replace").strip()
            raise ContainerDied(f"{worker.name} ended as soon as it was started; its log:\n{log}")
        return worker.name, int(container.attrs["State"]["Pid"])

    def _name(self, worker: str) -> str:
        """The dot is in no network's name: `a` with a worker `b-c-w0` and `a-b` with `c-w0` are two."""
        return f"testbed-{self._network}.{worker}"

    @contextmanager
    def replacing(self, workers: Iterable[str]) -> Iterator[None]:
        """While inside, other containers may be started, also for these workers, whose own wait aside.

        Left in order, it removes those; left by an error, it removes what was started and puts them back.
        """
        before, aside = dict(self._containers), {worker: self._containers.pop(worker) for worker in workers}
        for worker, container in aside.items():
            container.rename(f"{self._name(worker)}.before")
        try:
            yield
        except BaseException:
            fresh = [worker for worker, container in self._containers.items() if before.get(worker) is not container]
            self.drop(fresh)
            self._containers = before
            for worker, container in aside.items():
                container.rename(self._name(worker))
            raise
        for container in aside.values():
            _remove(container)

    def kill(self, worker: str) -> None:
        """End a worker's program at once."""
        self._containers[worker].kill()

    def exit_code(self, worker: str) -> int:
        """That of a worker's program, which has ended."""
        container = self._containers[worker]
        container.reload()
        return int(container.attrs["State"]["ExitCode"])

    def restart(self, request: ContainerRequest) -> int:
        """Another container in the place of a worker's own, which has ended; the pid of its first process."""
        name = request.worker.name
        _remove(self._containers.pop(name))
        return self.start([request])[name]

    def logs(self, worker: str) -> bytes:
        """What the worker has printed."""
        return bytes(self._containers[worker].logs())

    def running(self) -> dict[str, bool]:
        """Worker → whether its container still runs."""
        alive = {c.id for c in self._client.containers.list(filters={"label": f"{LABEL}={self._network}"})}
        return {name: container.id in alive for name, container in self._containers.items()}

    def drop(self, workers: Iterable[str]) -> None:
        """Remove the containers of these workers."""
        with ThreadPoolExecutor(PARALLEL) as pool:
            list(pool.map(_remove, [self._containers.pop(worker) for worker in workers]))

    def remove(self) -> None:
        """Remove every container of this network, also one that a broken start left."""
        # Interrupted as it starts a thread, a pool loses sight of it: it ends when its container is there.
        begun_by = time.monotonic() + BEGIN_S
        while lost := [thread for thread in threading.enumerate() if thread.name.startswith(self._threads)]:
            if lost[0].ident is not None:
                lost[0].join()
            elif time.monotonic() < begun_by:
                time.sleep(0.01)
            else:
                break
        remove_containers(self._client, self._network)


def remove_containers(client: docker.DockerClient, network: str | None = None) -> list[str]:
    """Remove the containers that carry our label, of one network or of all; their names."""
    label = LABEL if network is None else f"{LABEL}={network}"
    found = client.containers.list(all=True, filters={"label": label}, ignore_removed=True)
    with ThreadPoolExecutor(PARALLEL) as pool:
        list(pool.map(_remove, found))
    return sorted(str(container.name) for container in found)


def _remove(container: Container) -> None:
    try:
        container.remove(force=True, v=True)
    except NotFound:
        return  # it went by itself
    except APIError as error:
        if error.status_code != 409:  # its removal is under way
            raise
