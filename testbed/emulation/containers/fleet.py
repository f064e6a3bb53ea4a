"""The workers' containers: started in parallel, labelled, and without any network but the emulated one.

A container sees the emulated WAN and nothing else: network mode `none`, no capabilities, no new privileges, a user that
is not root, a read-only root with small file systems in memory. Control goes through a Unix socket in a mounted folder
that no other container sees. So the container writes nothing to the host's disk but its log, which is limited like
everything else it takes (see `limits`). All images are treated alike.
"""

from __future__ import annotations

import json
import signal
import stat
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Self

import docker
from docker.errors import APIError, NotFound
from docker.models.containers import Container
from docker.types import DeviceRequest, Mount

from testbed.compiler import C_FLAGS, CompilerError, compile_c
from testbed.emulation.containers import engine
from testbed.emulation.containers.image import ensure_worker_image, manifest_entry, record, volumes_in
from testbed.emulation.containers.limits import LOG_BYTES, RESTRICTIONS, ContainerLimits, ScratchSpace, written_size
from testbed.emulation.containers.program_image import program_image
from testbed.emulation.errors import EmulationError
from testbed.emulation.label import LABEL
from testbed.emulation.network.names import Names
from testbed.emulation.process import ProcessIdentity
from testbed.resources import BUILD
from testbed.spec.errors import Fault, SpecError
from testbed.spec.topology import Worker
from testbed.spec.units import OUT_BYTES

#: The folder of the control socket in a container. (A mounted socket file would go stale with its server.)
CONTROL_FOLDER = "/run/testbed"

#: The engine handles this many starts at once; more only queue up in it.
PARALLEL = 8

#: The seconds within which an engine notices that a container's first process has ended. A busy one takes some tenths.
NOTICED_S = 5.0

#: The number of last log lines quoted when a container's program ended too early.
QUOTED_LINES = 10


#: The mode bits by which everybody may read a folder, or start a program.
OPEN = stat.S_IROTH | stat.S_IXOTH

#: The folder in a container where a program starts and finds the files that it was given.
FILES = "/work"

#: The folder with an entry for each of this machine's GPUs, by NVIDIA's driver.
GPUS = Path("/proc/driver/nvidia/gpus")

#: The scratch space of a program's container.
SCRATCH = ScratchSpace(out_bytes=OUT_BYTES)

#: The source and the binary of the program that does nothing, and its path in a container.
IDLE_SOURCE = Path(__file__).with_name("idle.c")
IDLE_BINARY = BUILD / "testbed-idle"
IDLE_PROGRAM = "/testbed-idle"


class ContainerDied(RuntimeError):
    """A container's program ended at once; the text says how, with the end of its log."""


@dataclass(frozen=True, slots=True)
class ContainerRequest:
    """The program and files of one worker's container.

    Attributes:
        worker: The worker.
        command: The arguments of `entrypoint`, or of the image's own; None runs nothing until a program is started.
        entrypoint: Replaces the image's entry point.
        files: A folder of this machine, visible as FILES; the container's programs cannot change it.
    """

    worker: Worker
    command: Sequence[str] | None
    entrypoint: Sequence[str] | None = None
    files: Path | None = None

    def settings(self, control: Path) -> dict[str, Any]:
        """Return its program and mounts for the engine's client. Raises EmulationError."""
        mounts = {CONTROL_FOLDER: control, **Names(control.parent).mounts()}
        if self.files is not None:
            mounts[FILES] = self.files.resolve()
        entrypoint = self.entrypoint
        if self.command is None:
            mounts[IDLE_PROGRAM] = idle_program()
            entrypoint = (IDLE_PROGRAM,)
        return {
            "command": list(self.command or ()),
            "entrypoint": list(entrypoint) if entrypoint else None,
            "mounts": [Mount(where, str(path), type="bind", read_only=True) for where, path in mounts.items()],
        }


@dataclass(frozen=True, slots=True)
class ProgramContainers:
    """Containers for the user's own programs.

    Attributes:
        files: A folder of this machine, visible as FILES.
        image: A name that the engine knows, or the path of a Dockerfile, its folder or a requirements file; None is the
            default image.
        scratch: The writable file systems.
        renew: Whether to build the image of a file again.
    """

    files: Path | None = None
    image: str | None = None
    scratch: ScratchSpace = SCRATCH
    renew: bool = False

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Return the options of containers in a text that `to_json` made."""
        value = json.loads(text)
        files = Path(value["files"]) if value["files"] is not None else None
        return cls(files, value["image"], ScratchSpace(**value["scratch"]), value.get("renew", False))

    def to_json(self) -> str:
        """Return these options of containers as JSON, to pass them to another process."""
        files = str(self.files.resolve()) if self.files is not None else None
        scratch = {**asdict(self.scratch), "volumes": list(self.scratch.volumes)}
        return json.dumps({"files": files, "image": self.image, "scratch": scratch, "renew": self.renew})

    def check(self) -> None:
        """Raise SpecError if the containers' user may not read the files."""
        if self.files is not None:
            check_readable(self.files, "files", "another folder")


class Fleet:
    """The containers of one network, which are found by its label.

    Each container sees a subfolder of `control`, read-only, as CONTROL_FOLDER, by which the controller identifies it.
    """

    def __init__(
        self, client: docker.DockerClient, network: str, image: str, control: Path, scratch: ScratchSpace | None = None
    ) -> None:
        self.image = image
        self._scratch = scratch or ScratchSpace()
        self.client = client
        #: The limits of each container; None before the first start.
        self.limits: ContainerLimits | None = None
        self._network = network
        self._control = control
        self._containers: dict[str, Container] = {}
        self._threads = f"start {network} "
        self._removing = threading.Event()  # once set, the starts submitted so far do not begin any more
        self._programs: dict[str, ProcessIdentity] = {}
        self._gpus: dict[str, list[str]] = {}

    @classmethod
    def connected(cls, network: str, control: Path, programs: ProgramContainers | None = None) -> Self:
        """Return a fleet on the engine that answers, of the worker image or as `programs` need it.

        Raises:
            EngineError: No engine answers.
            ImageError: The image could not be built.
            SpecError: The named image does not exist, or has a volume where no container may have one.
        """
        client = engine.connect()
        if programs is None:
            image, scratch = ensure_worker_image(client, lambda _: None), ScratchSpace()
        else:
            image, scratch = program_image(client, programs.image, lambda _: None, programs.renew), programs.scratch
        return cls(client, network, image, control, replace(scratch, volumes=volumes_in(client, image)))

    def image_record(self) -> dict[str, Any]:
        """Return the containers' image for a manifest: its build time, and its Debian and Python packages' versions."""
        return manifest_entry(record(self.client, self.image))

    def start(self, requests: Iterable[ContainerRequest]) -> Mapping[str, ProcessIdentity]:
        """Start all; return each worker's first process, proven to be in its container.

        The containers of the first start share the host's memory among themselves; later ones get the same share.

        Raises:
            ContainerDied: A container has ended.
            EmulationError: This host has too little memory, or can't enforce a limit that a worker declares.
            ForeignEngineError: The engine's process ids are not this machine's.
            APIError: The engine refused a container.
        """
        requests = list(requests)
        if any(request.command is None for request in requests):
            idle_program()  # once, before several threads ask for it
        self._assign_gpus([request.worker for request in requests])
        limits = self.limits = self.limits or ContainerLimits.of([r.worker for r in requests], self.client.info())
        with ThreadPoolExecutor(PARALLEL, thread_name_prefix=self._threads) as pool:
            return dict(pool.map(partial(self._start, self._removing, limits), requests))

    def _assign_gpus(self, workers: Iterable[Worker]) -> None:
        """Choose the GPUs of workers, the least used ones: an engine gives each container the first ones."""
        there = len(list(GPUS.glob("*")))
        used = Counter(number for name in self._containers for number in self._gpus.get(name, ()))
        for worker in workers:
            if 0 < worker.gpus <= there and len(self._gpus.get(worker.name, ())) != worker.gpus:
                chosen = sorted(map(str, range(there)), key=lambda number: used[number])[: worker.gpus]
                self._gpus[worker.name] = chosen
                used.update(chosen)

    def _start(
        self, removing: threading.Event, limits: ContainerLimits, request: ContainerRequest
    ) -> tuple[str, ProcessIdentity]:
        if removing.is_set():
            raise CancelledError
        worker = request.worker
        control = self._control / worker.name
        control.mkdir(exist_ok=True)
        settings = request.settings(control)
        mounted = {mount["Target"] for mount in settings["mounts"]}
        # The engine would mount the volume's memory in place of the folder.
        volumes = tuple(volume for volume in self._scratch.volumes if volume not in mounted)
        container = self.client.containers.create(
            self.image,
            name=container_name(self._network, worker.name),
            hostname=worker.name,
            labels={LABEL: self._network},
            **RESTRICTIONS,
            nano_cpus=int(worker.cpus * 1e9) if worker.cpus else None,
            device_requests=_gpu_requests(worker.gpus, self._gpus.get(worker.name)),
            **settings,
            **replace(self._scratch, volumes=volumes).settings(),
            **limits.settings(worker),
        )
        self._containers[worker.name] = container
        container.start()
        program = self._programs[worker.name] = _first_process(container, worker.name)
        return worker.name, program

    @contextmanager
    def replacing(self, workers: Iterable[str]) -> Iterator[None]:
        """Allow replacements for these workers inside the context; their present containers are set aside.

        A normal end removes the containers set aside. An error removes what was started and puts them back.
        """
        programs = dict(self._programs)
        before, aside = dict(self._containers), {worker: self._containers.pop(worker) for worker in workers}
        renamed: list[str] = []
        try:
            for worker, container in aside.items():
                aside_name = f"{container_name(self._network, worker)}.before"
                with suppress(NotFound):  # usually there is none; the engine may have refused to remove it
                    _remove(self.client.containers.get(aside_name))
                with suppress(NotFound):  # somebody removed it, and it is replaced all the same
                    container.rename(aside_name)
                    renamed.append(worker)
            yield
        except BaseException:
            fresh = [worker for worker, container in self._containers.items() if before.get(worker) is not container]
            self.drop(fresh)
            self._containers, self._programs = before, programs
            for worker in renamed:
                aside[worker].rename(container_name(self._network, worker))
            raise
        _remove_all(aside.values())

    def kill(self, worker: str, sent: signal.Signals = signal.SIGKILL) -> None:
        """Send a signal to a worker's program: SIGKILL, or SIGUSR1, at which our worker logs its threads' stacks."""
        self._containers[worker].kill(sent.name)

    def death(self, worker: str) -> str:
        """Return how a worker's program ended, as the end of a sentence: its exit code, and the end of its log."""
        container = self._containers[worker]
        try:
            container.reload()
            return _how_it_ended(container)
        except NotFound:
            return "together with its container, which was removed"

    def deaths(self) -> dict[str, str]:
        """Return, by worker, how its program ended, for programs that ended with an error; see `death`."""
        dead = [worker for worker, runs in self.running().items() if not runs]
        return {worker: self.death(worker) for worker in dead if self.exit_code(worker) != 0}

    def exit_code(self, worker: str) -> int | None:
        """Return the exit code of a worker's program that has ended; None if its container is gone."""
        container = self._containers[worker]
        try:
            container.reload()
        except NotFound:
            return None
        return int(container.attrs["State"]["ExitCode"])

    def restart(self, request: ContainerRequest) -> ProcessIdentity:
        """Start another container in place of a worker's ended one, and return its first process."""
        name = request.worker.name
        _remove(self._containers[name])  # the entry stays, so that a failed start can be tried again
        return self.start([request])[name]

    def logs(self, worker: str) -> bytes:
        """Return the worker's output, or the last LOG_BYTES of it."""
        return _end_of_log(self._containers[worker])

    def running(self) -> dict[str, bool]:
        """Return whether each worker's container is running."""
        # Sparse: one request, without another for each container, which may be gone by then.
        found = self.client.containers.list(filters={"label": f"{LABEL}={self._network}"}, sparse=True)
        alive = {container.id for container in found}
        return {name: container.id in alive for name, container in self._containers.items()}

    def drop(self, workers: Iterable[str]) -> None:
        """Remove the containers of these workers."""
        _remove_all([self._containers.pop(worker) for worker in workers])

    def remove(self) -> None:
        """Remove every container of this network, also those that a broken start left.

        Raises:
            EngineError: The engine failed. The containers' programs were killed, so that none of them runs on.
        """
        # A pool that is interrupted while it starts a thread loses track of it. The thread ends when its container is
        # started. A thread that is not alive yet may begin at any time, and then finds `removing` set.
        self._removing.set()
        self._removing = threading.Event()
        for thread in threading.enumerate():
            if thread.name.startswith(self._threads) and thread.is_alive():
                thread.join()
        try:
            remove_containers(self.client, self._network)
        except engine.ENGINE_ERRORS as error:
            for program in self._programs.values():
                program.send(signal.SIGKILL)
            raise engine.EngineError(
                f"the containers of {self._network} were killed, but the engine did not remove them: {error}"
            ) from error


def check_readable(path: Path, field: str, instead: str) -> None:
    """Raise SpecError if the containers' user may not read a file or enter a folder that `field` names."""
    bits, change = (OPEN, "o+rx") if path.is_dir() else (stat.S_IROTH, "o+r")
    if path.stat().st_mode & bits != bits:
        rule = "is not readable for the workers' user, which is not a user of this machine"
        raise SpecError(path, [Fault(field, rule, f"chmod {change} {path.resolve()}, or {instead}")])


def _gpu_requests(count: int, numbers: Sequence[str] | None) -> list[DeviceRequest] | None:
    """Return the request for a worker's GPUs, by their numbers if these are known."""
    if not count:
        return None
    capabilities = [["gpu"]]
    if numbers:
        return [DeviceRequest(device_ids=list(numbers), capabilities=capabilities)]
    return [DeviceRequest(count=count, capabilities=capabilities)]


def idle_program() -> Path:
    """Return the program that does nothing, compiled first if it must be. Raises EmulationError."""
    try:
        program = compile_c([IDLE_SOURCE], [*C_FLAGS, "-static", "-s"], IDLE_BINARY)
        if program.stat().st_mode & OPEN != OPEN:  # compiled under a umask such as 077
            program.chmod(0o755)  # the containers' user must start it
    except (CompilerError, OSError) as error:
        raise EmulationError(str(error)) from None
    return program


def container_name(network: str, worker: str) -> str:
    """Return the name of a worker's container.

    A network's name has no dot, so network `a` with worker `b-c-w0` and network `a-b` with worker `c-w0` differ.
    """
    return f"testbed-{network}.{worker}"


def images_of(client: docker.DockerClient, network: str) -> list[dict[str, Any]]:
    """Return the images of a network's containers for a manifest, each as `image.record`."""
    found = client.api.containers(filters={"label": f"{LABEL}={network}"})
    return [record(client, identifier) for identifier in sorted({str(each["ImageID"]) for each in found})]


def remove_containers(client: docker.DockerClient, network: str) -> list[str]:
    """Remove the containers of a network, and return their names."""
    found = client.containers.list(all=True, filters={"label": f"{LABEL}={network}"}, ignore_removed=True)
    _remove_all(found)
    return sorted(str(container.name) for container in found)


def _first_process(container: Container, worker: str) -> ProcessIdentity:
    """Return the first process of a container that was just started. Raises ContainerDied, ForeignEngineError."""
    container.reload()
    pid = int(container.attrs["State"]["Pid"])
    if container.status == "running" and (process := engine.proven_process(str(container.id), pid)) is not None:
        return process
    with suppress(*engine.ENGINE_ERRORS):  # raised if the container goes on running
        container.wait(timeout=NOTICED_S)
    container.reload()
    if container.status == "running":
        raise engine.ForeignEngineError(str(container.id), pid, "this machine has no process of that number")
    raise ContainerDied(f"the container of {worker} ended right after its start, {_how_it_ended(container)}")


def _how_it_ended(container: Container) -> str:
    state = container.attrs["State"]
    memory = container.attrs["HostConfig"]["Memory"]
    short = f", out of memory: its limit is {written_size(memory)}" if state["OOMKilled"] else ""
    lines = _end_of_log(container).decode(errors="replace").splitlines()[-QUOTED_LINES:]
    said = "\n".join(["its log ends with:", *lines]) if lines else "its log is empty"
    return f"with exit code {state['ExitCode']}{short}; {said}"


def _end_of_log(container: Container) -> bytes:
    """Return the last LOG_BYTES of a container's output, without holding more in memory."""
    kept = bytearray()
    for piece in container.logs(stream=True, follow=False):
        kept += piece
        del kept[:-LOG_BYTES]
    return bytes(kept)


def _remove_all(containers: Iterable[Container]) -> None:
    """Remove containers, each of them even where the engine refuses another one."""
    with ThreadPoolExecutor(PARALLEL) as pool:
        removals = [pool.submit(_remove, container) for container in containers]
    for removal in removals:
        removal.result()


def _remove(container: Container) -> None:
    try:
        container.remove(force=True, v=True)
    except NotFound:
        return  # already removed
    except APIError as error:
        if error.status_code != 409:  # 409: its removal is under way
            raise
