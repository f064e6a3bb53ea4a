"""What a worker's container may take of the host: memory, processes, open files and log.

What a topology declares holds. Of the rest a worker's share is this:

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

#: What the system itself needs beside the workers, from now on: the run's process and its controller, the engine,
#: packets that wait, and the files that the kernel keeps in memory.
RESERVE_BYTES = 1 << 30

#: A program that does nothing takes 6 MiB, and the engine refuses less.
LEAST_BYTES = 16 << 20

#: Processes and threads: those of PyTorch and of the libraries below it, which start one a core, …
PIDS = 512
#: … and those that send to and hear from each other member, up to 16 streams each way.
PIDS_A_MEMBER = 32

#: Each connection to another member is one, and a thread beside it.
OPEN_FILES = 8192

#: The engine keeps so many bytes of a container's log, in LOG_FILES files: the oldest goes first.
LOG_BYTES = 4 << 20
LOG_FILES = 2

#: When the host has no memory left, its kernel ends workers before anything that has no such mark.
OUT_OF_MEMORY_SCORE = 500


@dataclass(frozen=True, slots=True)
class ContainerLimits:
    """The limits of each container of a network: `memory_bytes` for workers that declare none, `pids` for each.

    `missing` has those that are not in force on this host, each with the reason.
    """

    memory_bytes: int
    pids: int
    missing: Mapping[str, str]

    @classmethod
    def of(cls, workers: Sequence[Worker], info: Mapping[str, Any]) -> ContainerLimits:
        """What this host shares out among these workers, where the engine says of itself what `info` has.

        EmulationError when nothing is left for workers that declare nothing.
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
        share = max(free // max(1, others), LEAST_BYTES)  # the least for those that come where all these declare it all
        return cls(share, PIDS + PIDS_A_MEMBER * len(workers), missing_limits(info))

    def memory_of(self, worker: Worker) -> int:
        """A worker's memory in bytes, as declared or its share."""
        return worker.memory or self.memory_bytes

    def settings(self, worker: Worker) -> dict[str, Any]:
        """A worker's limits, as the engine's client takes them. EmulationError when it declares one that the host can't
        keep."""
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
        """For a manifest: each figure, and what is not in force."""
        return {
            "memory_bytes": {worker.name: self.memory_of(worker) for worker in workers},
            "reserve_bytes": RESERVE_BYTES,
            "pids": self.pids,
            "open_files": OPEN_FILES,
            "log_bytes": LOG_BYTES,
            "not_in_force": dict(self.missing),
        }


#: A limit, what the engine says of itself where it can keep it, and the reason where it can't, with the remedy.
_NEEDED = {
    "memory": (
        "MemoryLimit",
        "the kernel gives the engine no memory controller; boot it with `cgroup_enable=memory`",
    ),
    "swap": ("SwapLimit", "the kernel does not count swap; boot it with `swapaccount=1`, or turn swap off"),
    "pids": ("PidsLimit", "the kernel gives the engine no pids controller; use one built with CONFIG_CGROUP_PIDS"),
}


def missing_limits(info: Mapping[str, Any]) -> dict[str, str]:
    """The limits that an engine which says this of itself drops with a warning that nobody sees, and why."""
    return {limit: why for limit, (field, why) in _NEEDED.items() if not info.get(field)}


def available_bytes() -> int:
    """The memory that programs can have without any swapping: what others hold now is theirs."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) << 10
    raise EmulationError("/proc/meminfo has no MemAvailable; use Linux 3.14 or newer")


def ended_for_memory(pid: int) -> int:
    """Return how many processes the kernel has ended for the memory limit of a container, whose first process has this
    number; 0 where it does not say. The engine's own flag tells of the first process alone.

    A container sees its control group where it has mounted it: the first version's by its name, and the second's at the
    root, or below it where it shares the host's namespace of control groups.
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
    """Return the count in a control group's `memory.events` or `memory.oom_control` (the kernel's from 4.13 on)."""
    counts = dict(line.split() for line in text.splitlines() if len(line.split()) == 2)
    return int(counts.get("oom_kill", 0))


def _mib(count: int) -> str:
    return f"{max(count, 0) >> 20} MiB"
