"""The memory, descriptors, threads and bytes on disk of a run's processes, read from outside."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tests.run.running import Running


@dataclass(frozen=True, slots=True)
class Resources:
    """The resources of one process: bytes of its own memory (without files' pages), descriptors and threads."""

    anonymous_bytes: int
    descriptors: int
    threads: int


def read_resources(pid: int) -> Resources:
    """Read a process's resources. Raises OSError or AttributeError if it has just ended."""
    status = Path(f"/proc/{pid}/status").read_text()

    def value(name: str) -> int:
        return int(re.search(rf"^{name}:\s+(\d+)", status, re.MULTILINE)[1])  # type: ignore[index]

    return Resources(1024 * value("RssAnon"), len(list(Path(f"/proc/{pid}/fd").iterdir())), value("Threads"))


def processes(running: Running) -> Iterator[tuple[str, int]]:
    """Yield (name, pid) of the run, its children, and each worker. A restarted worker has another pid."""
    yield "run", running.process.pid
    for child in _children(running.process.pid):
        with suppress(OSError):
            yield _noun(child), child
    for container in running.containers:
        yield container.attrs["Config"]["Hostname"], container.attrs["State"]["Pid"]


def sample(running: Running) -> dict[str, Mapping[str, float]]:
    """Return the resources now, by process ("controller 812")."""
    found: dict[str, Mapping[str, float]] = {}
    for noun, pid in processes(running):
        with suppress(OSError, TypeError):  # it has just ended
            now = read_resources(pid)
            found[f"{noun} {pid}"] = {
                "memory MiB": now.anonymous_bytes / 2**20,
                "descriptors": now.descriptors,
                "threads": now.threads,
            }
    return found


def on_disk(directory: Path) -> int:
    """Return the bytes of all files in the run's directory."""
    return sum(file.stat().st_size for file in directory.rglob("*") if file.is_file() and not file.is_symlink())


def _children(pid: int) -> Iterator[int]:
    for file in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):
            yield from map(int, file.read_text().split())


def _noun(pid: int) -> str:
    """Return the module that a Python process runs, without its package, or another program's name."""
    words = Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
    if "-m" in words:
        return words[words.index("-m") + 1].rpartition(".")[2]
    return Path(words[0]).name or Path(f"/proc/{pid}/comm").read_text().strip()
