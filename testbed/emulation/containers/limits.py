"""Limits of a worker's container: memory, processes, open files and log.

A memory limit declared in the topology is used as it is. Workers that declare none share the rest:

    memory available now - RESERVE_BYTES - what workers declare
    -----------------------------------------------------------      and no swap beyond it
                  workers that declare none
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from docker.types import LogConfig, Ulimit

from testbed.emulation.errors import EmulationError
from testbed.spec.topology import Worker
from testbed.spec.units import SIZES

#: Memory for everything but the workers: the run's process and its controller, the engine, queued packets, and the
#: kernel's file cache.
RESERVE_BYTES = 1 << 30

#: A program that does nothing takes 6 MiB, and the engine refuses lower limits.
LEAST_BYTES = 16 << 20

#: Processes and threads of PyTorch and its libraries, which start one a core.
PIDS = 512
#: Threads that send to and receive from each other member, up to 16 streams each way.
PIDS_A_MEMBER = 32

#: Each connection to another member takes one, and a thread beside it.
OPEN_FILES = 8192

#: The engine keeps this much of a container's log, in LOG_FILES files; the oldest is dropped first.
LOG_BYTES = 4 << 20
LOG_FILES = 2

#: If the host runs out of memory, its kernel kills workers before processes without such a score.
OUT_OF_MEMORY_SCORE = 500


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
        memory = self.memory_of(worker)
        return {
            "mem_limit": memory,
            "memswap_limit": memory,
            "oom_score_adj": OUT_OF_MEMORY_SCORE,
            "pids_limit": self.pids,
            "ulimits": [Ulimit(name="nofile", soft=OPEN_FILES, hard=OPEN_FILES)],
            "log_config": LogConfig(
                type=LogConfig.types.JSON,
                config={"max-size": str(LOG_BYTES // LOG_FILES), "max-file": str(LOG_FILES)},
            ),
        }

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
    root = Path(f"/proc/{pid}/root/sys/fs/cgroup")
    try:
        groups = Path(f"/proc/{pid}/cgroup").read_text().splitlines()
    except OSError:
        return 0
    own = [line.removeprefix("0::").strip("/") for line in groups if line.startswith("0::")]
    places = [root / "memory/memory.oom_control", *(root / path / "memory.events" for path in own)]
    for file in (*places, root / "memory.events"):
        try:
            return oom_kills(file.read_text())
        except OSError:
            continue
    return 0


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
