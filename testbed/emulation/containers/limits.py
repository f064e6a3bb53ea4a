"""Limits of a container: memory, processes, open files, log, and writable file systems.

These limits and RESTRICTIONS hold for every container that the testbed starts, whatever its image says.

A memory limit declared in the topology is used as it is. Workers that declare none share the rest:

    memory available now - RESERVE_BYTES - what workers declare
    -----------------------------------------------------------      and no swap beyond it
                  workers that declare none
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from posixpath import normpath
from types import MappingProxyType
from typing import Any

from docker.types import LogConfig, Ulimit

from testbed.emulation.errors import EmulationError
from testbed.spec.errors import Fault, SpecError
from testbed.spec.topology import Worker
from testbed.spec.units import SHM_BYTES, SIZES, TMP_BYTES

#: The user of a container's programs, unknown on the host; images made here call it `worker`.
USER_ID = 10001
USER = f"{USER_ID}:{USER_ID}"

#: The CPU weight of a container: half of a process's default (1024), so that the emulation itself has priority.
CPU_SHARES = 512

#: The settings for the engine's client that no image changes.
RESTRICTIONS: Mapping[str, Any] = MappingProxyType(
    {
        "network_mode": "none",
        "cap_drop": ["ALL"],
        "security_opt": ["no-new-privileges"],
        "read_only": True,
        "user": USER,
        "healthcheck": {"test": ["NONE"]},  # an image's own would take unaccounted processor time
        "cpu_shares": CPU_SHARES,
    }
)

#: The folder in a container for the files that a program is to leave.
OUT = "/out"
#: The folder in a container with changes that programs make in the files that they were given
#: (`launch.working_folder`). Only root may read it.
CHANGES = "/run/testbed-changes"
#: The most files in each of OUT and CHANGES; a file takes some 1 KiB of the kernel's memory.
MOST_FILES = 16_384

#: The folders in a container with the kernel's own file systems, where an image may have no volume.
KERNEL_FOLDERS = ("/proc", "/sys", "/dev")
#: The folder in a container where the engine mounts the control groups, and the types of these mounts.
CONTROL_GROUPS = "/sys/fs/cgroup"
CONTROL_GROUP_TYPES = ("cgroup", "cgroup2")

#: Memory for everything but the workers: the run's process and its controller, the engine, queued packets, and the
#: kernel's file cache.
RESERVE_BYTES = 1 << 30

#: The least memory of a container: a program that does nothing takes 6 MiB, and the engine refuses lower limits.
LEAST_BYTES = 16 << 20

#: The most processes and threads of PyTorch and its libraries, which start one per core.
PIDS = 512
#: Threads that send to and receive from each other member, up to 16 streams each way.
PIDS_A_MEMBER = 32

#: The most open files: each connection to another member takes one, and a thread beside it.
OPEN_FILES = 8192

#: The engine keeps this much of a container's log, in LOG_FILES files; the oldest is dropped first.
LOG_BYTES = 4 << 20
LOG_FILES = 2

#: If the host runs out of memory, its kernel kills workers before processes without such a score.
OUT_OF_MEMORY_SCORE = 500


@dataclass(frozen=True, slots=True)
class ScratchSpace:
    """The writable file systems of a container, in bytes. They are in memory and count as the container's own.

    Attributes:
        tmp_bytes: The size of /tmp.
        shm_bytes: The size of /dev/shm.
        out_bytes: The size of OUT and of CHANGES; with 0 there is neither.
        volumes: The image's volumes, each as large as /tmp. Without this, the engine would put them on the host's disk,
            without a limit.
    """

    tmp_bytes: int = TMP_BYTES
    shm_bytes: int = SHM_BYTES
    out_bytes: int = 0
    volumes: tuple[str, ...] = ()

    def settings(self) -> dict[str, Any]:
        """Return the settings for the engine's client."""
        own = f"uid={USER_ID},gid={USER_ID},mode=755,nr_inodes={MOST_FILES}"
        # By default the engine mounts noexec, and no compiled library can be loaded: torch.compile, cpp_extension,
        # Numba and cffi all put libraries below /tmp, which is HOME too. nosuid and nodev stay.
        tmpfs = dict.fromkeys(self.volumes, f"exec,size={self.tmp_bytes},{own}")
        tmpfs["/tmp"] = f"exec,size={self.tmp_bytes}"
        if self.out_bytes:
            tmpfs[OUT] = f"size={self.out_bytes},{own}"
            tmpfs[CHANGES] = f"size={self.out_bytes},uid=0,gid=0,mode=700,nr_inodes={MOST_FILES}"
        return {"tmpfs": tmpfs, "shm_size": self.shm_bytes}


def clean_volumes(image: str, volumes: Iterable[str]) -> tuple[str, ...]:
    """Return the paths of an image's volumes in their shortest form, each once.

    The engine looks for a volume in memory by its shortest path: it would put a `/data/` on the host's disk.

    Raises:
        SpecError: A path is relative or the root, or leads into one of KERNEL_FOLDERS.
    """
    found = dict.fromkeys(f"/{normpath(each).lstrip('/')}" if each.startswith("/") else each for each in volumes)
    for place in found:
        is_kernel = any(place == folder or place.startswith(f"{folder}/") for folder in KERNEL_FOLDERS)
        if place == "/" or not place.startswith("/") or is_kernel:
            rule = f"has a VOLUME at {place!r}, which is relative or covers file systems of the container"
            remedy = f"an image whose volumes have absolute paths outside of {', '.join(KERNEL_FOLDERS)}"
            raise SpecError(image, [Fault("image", rule, remedy)])
    return tuple(found)


def limit_settings(memory_bytes: int, pids: int) -> dict[str, Any]:
    """Return a container's limits for the engine's client."""
    return {
        "mem_limit": memory_bytes,
        "memswap_limit": memory_bytes,
        "oom_score_adj": OUT_OF_MEMORY_SCORE,
        "pids_limit": pids,
        "ulimits": [Ulimit(name="nofile", soft=OPEN_FILES, hard=OPEN_FILES)],
        "log_config": LogConfig(
            type=LogConfig.types.JSON,
            config={"max-size": str(LOG_BYTES // LOG_FILES), "max-file": str(LOG_FILES)},
        ),
    }


@dataclass(frozen=True, slots=True)
class ContainerLimits:
    """The limits of each container of a network.

    Attributes:
        memory_bytes: The memory of each worker that declares none.
        pids: The processes and threads of each container.
        missing: The limits that this host does not enforce, each with the reason.
    """

    memory_bytes: int
    pids: int
    missing: Mapping[str, str]

    @classmethod
    def of(cls, workers: Sequence[Worker], info: Mapping[str, Any]) -> ContainerLimits:
        """Return the limits for these workers on this host. `info` is the engine's information about itself.

        Raises:
            EmulationError: Nothing is left for workers that declare nothing.
        """
        others = sum(worker.memory is None for worker in workers)
        free = available_bytes() - RESERVE_BYTES - sum(worker.memory or 0 for worker in workers)
        if others and free < others * LEAST_BYTES:
            raise EmulationError(
                f"this host has too little memory: of {_mib(available_bytes())} available, {_mib(RESERVE_BYTES)} are "
                f"reserved for the system, and {others} workers without a declared limit would share {_mib(free)}; "
                "declare less `memory`, or fewer workers",
                rule="memory",
            )
        share = max(free // max(1, others), LEAST_BYTES)  # the minimum is for workers that are added later
        return cls(share, PIDS + PIDS_A_MEMBER * len(workers), missing_limits(info))

    def memory_of(self, worker: Worker) -> int:
        """Return a worker's memory in bytes, declared or shared."""
        return worker.memory or self.memory_bytes

    def settings(self, worker: Worker) -> dict[str, Any]:
        """Return a worker's limits for the engine's client.

        Raises:
            EmulationError: The worker declares a limit that this host can't enforce.
        """
        if worker.memory and "memory" in self.missing:
            raise EmulationError(
                f"{worker.name} declares `memory`, but {self.missing['memory']}",
                rule="no-controller",
                member=worker.name,
            )
        return limit_settings(self.memory_of(worker), self.pids)

    def record(self, workers: Sequence[Worker]) -> dict[str, Any]:
        """Return the entry for a manifest: each limit, and those that are not in force."""
        return {
            "memory_bytes": {worker.name: self.memory_of(worker) for worker in workers},
            "reserve_bytes": RESERVE_BYTES,
            "pids": self.pids,
            "open_files": OPEN_FILES,
            "log_bytes": LOG_BYTES,
            "not_in_force": dict(self.missing),
        }


#: For each limit: the field of the engine's information that says whether it works, and the reason and remedy if not.
_NEEDED = {
    "memory": (
        "MemoryLimit",
        "the kernel gives the engine no memory controller; boot it with `cgroup_enable=memory`",
    ),
    "swap": ("SwapLimit", "the kernel does not count swap; boot it with `swapaccount=1`, or turn swap off"),
    "pids": ("PidsLimit", "the kernel gives the engine no pids controller; use one built with CONFIG_CGROUP_PIDS"),
}


def missing_limits(info: Mapping[str, Any]) -> dict[str, str]:
    """Return each limit that this engine would not enforce, with the reason and the remedy."""
    return {limit: why for limit, (field, why) in _NEEDED.items() if not info.get(field)}


def available_bytes() -> int:
    """Return the memory that programs can get without swapping; memory that others hold now is not included."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) << 10
    raise EmulationError("/proc/meminfo has no MemAvailable; use Linux 3.14 or newer")


def ended_for_memory(pid: int) -> int:
    """Return how many processes the kernel killed for a container's memory limit; 0 if it does not say.

    `pid` is the container's first process. The engine's own flag covers that process alone. The container sees its
    control group where it has mounted it: version 1 by the controller's name, and version 2 at the root, or below it if
    the container shares the host's cgroup namespace.
    """
    process = Path(f"/proc/{pid}")
    try:
        groups = (process / "cgroup").read_text().splitlines()
        mounts = (process / "mountinfo").read_bytes()
    except OSError:
        return 0
    own = [line.removeprefix("0::").strip("/") for line in groups if line.startswith("0::")]
    files = ["memory/memory.oom_control", *(f"{path}/memory.events" for path in own), "memory.events"]
    places = [normpath(f"{CONTROL_GROUPS}/{file}") for file in files]
    for place in filter(partial(is_in_control_group, mounts), places):
        try:
            return oom_kills(Path(f"{process}/root{place}").read_text())
        except OSError:
            continue
    return 0


def is_in_control_group(mounts: bytes, place: str) -> bool:
    """Return whether a container's path lies in a mount of control groups, by the container's `mountinfo`.

    In any other mount the path may be a link, by which a program leads this process to any file of the host. Of several
    mounts at the path or above it, the last one counts.
    """
    kind = ""
    for line in filter(None, mounts.decode(errors="replace").split("\n")):  # names may have other ends of lines
        fields, _, more = line.partition(" - ")
        if place.startswith(f"{fields.split(' ')[4].rstrip('/')}/"):
            kind = more.partition(" ")[0]
    return kind in CONTROL_GROUP_TYPES


def oom_kills(text: str) -> int:
    """Return how many processes the kernel killed for a memory limit; 0 if the text has no count.

    The text is a control group's `memory.events` or `memory.oom_control` (Linux 4.13 or later).
    """
    counts = dict(line.split() for line in text.splitlines() if len(line.split()) == 2)
    return int(counts.get("oom_kill", 0))


def written_size(size: int) -> str:
    """Return a number of bytes as a file has it (`200MB`, `1.5GiB`); in whole MiB where no unit gives few digits."""
    exact = [
        f"{number:g}{unit}"
        for unit, its in SIZES.items()
        if (number := size / its) >= 1 and float(f"{number:g}") == number < 1e6
    ]
    return min(exact, key=len, default=f"{size >> 20}MiB")


def _mib(count: int) -> str:
    return f"{max(count, 0) >> 20} MiB"
