"""The machine around a run: what the run left on it, and things of other people that no run may touch."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.run.running import NOTHING, Running, interfaces

CGROUPS = Path("/sys/fs/cgroup")


def foreign_name(nemesis: int) -> str:
    """Return the name of the foreign interface and namespace that the nemesis with this pid makes."""
    return f"foreign{nemesis % 10**7}"  # an interface's name has 15 characters


class ForeignThings:
    """An interface with an address, a network namespace and a process that are not the testbed's. A context manager."""

    def __init__(self) -> None:
        self._name = foreign_name(os.getpid())

    def __enter__(self) -> ForeignThings:
        link = ("link", "add", self._name, "type", "bridge")
        for words in (link, ("address", "add", "192.0.2.1/32", "dev", self._name), ("netns", "add", self._name)):
            subprocess.run(["ip", *words], check=True)
        self._process = subprocess.Popen(["ip", "netns", "exec", self._name, "sleep", "infinity"])
        self._before = self._state()
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        for kind in ("netns", "link"):
            subprocess.run(["ip", kind, "del", self._name], check=False)

    @property
    def touched(self) -> tuple[str, ...]:
        """The changes, each with the state before and now."""
        now = self._state()
        return tuple(f"{what} was {was}, is {now[what]}" for what, was in self._before.items() if now[what] != was)

    def _state(self) -> dict[str, str]:
        return {
            "the interface": _said("ip", "address", "show", "dev", self._name),
            "its queue": _said("tc", "qdisc", "show", "dev", self._name),
            "the namespace": str(self._name in _said("ip", "netns", "list")),
            "the process": str(self._process.poll()),
        }


@contextmanager
def interfaces_kept() -> Iterator[Callable[[], list[str]]]:
    """Yield a function that returns the interfaces which were not there on entering."""
    before = interfaces()
    yield lambda: sorted(interfaces() - before)


def left_behind(running: Running, containers: Iterable[str], temporary: Path) -> list[str]:
    """Return what is left of a run: processes, containers, networks, files, and the cgroups of `containers` (ids)."""
    if not running.directory.exists():
        return []  # it ended before it had a name
    name = running.directory.name
    found = [f"{kind}: {things}" for kind, things in running.left_behind.items() if things != NOTHING[kind]]
    found += [f"temporary: {path.name}" for path in temporary.iterdir()]
    walked = os.walk("/run")  # which passes over what goes meanwhile
    found += [f"{folder}/{each}" for folder, folders, files in walked for each in (*folders, *files) if name in each]
    ids = tuple(containers)
    found += [str(path) for path in CGROUPS.glob("*/docker/*") if path.name in ids]
    return found


def _said(*words: str) -> str:
    done = subprocess.run(words, check=False, capture_output=True, text=True)
    return (done.stdout + done.stderr).strip()
