"""Locked Python packages: pyproject.toml has each package's range, requirements.lock its version and its files' hashes.

pip gets the lock as constraints: it takes the packages that are asked for, and of the others those that the chosen
build needs. So the CUDA packages of torch (2.5 GB) come with a torch built for CUDA and not without.

    python -m testbed.emulation.containers.requirements EXTRA...    prints what these extras ask for, as locked

It needs the standard library and pip alone, because its output is used to create the environment.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from testbed.resources import SHARE

ROOT = SHARE

#: Packages with builds for different machines (`2.13.0+cpu`). pip's settings (an index, a folder) choose the build.
BUILT = frozenset({"torch"})

#: An entry as uv writes it: `name==1.2 ; marker \`, a line for each hash, and comments with the packages that need it.
ENTRY = re.compile(r"^([\w.-]+)==([^\s;\\]+)(?: ; ([^\\\n]+?))?(?: \\)?\n((?:^ +.*\n)*)", re.MULTILINE)


class LockError(Exception):
    """pyproject.toml and requirements.lock do not agree; the text says where and what to do."""


@dataclass(frozen=True, slots=True)
class Locked:
    """A package of the lock. `needed_by` has the packages that need it, or the file that pins it."""

    name: str
    version: str
    marker: str | None
    hashes: tuple[str, ...]
    needed_by: tuple[str, ...]

    @property
    def requirement(self) -> str:
        """The package as a requirements file has it, with hashes."""
        marker = f" ; {self.marker}" if self.marker else ""
        lines = [f"{self.name}=={self.version}{marker}", *(f"    --hash=sha256:{digest}" for digest in self.hashes)]
        return " \\\n".join(lines) + "\n"

    def __str__(self) -> str:
        return f"{self.requirement}    # via {', '.join(self.needed_by)}\n"


Lock = dict[str, Locked]


def parse(text: str) -> Lock:
    """Return the packages of a lock by name."""
    lock = {}
    for name, version, marker, rest in ENTRY.findall(text):
        hashes = tuple(re.findall(r"--hash=sha256:([0-9a-f]{64})", rest))
        users = re.findall(r"(?:# via|,) ([\w.-]+)", rest)
        lock[name] = Locked(name, version, marker or None, hashes, tuple(users))
    return lock


def read(root: Path = ROOT) -> Lock:
    """Read the lock of a checkout."""
    return parse((root / "requirements.lock").read_text())


def wanted(*extras: str, root: Path = ROOT) -> list[str]:
    """Return the requirements (`torch>=2.6`) of extras of pyproject.toml, or of all extras if none is named.

    The extra `base` has the package's own dependencies; `sync` has a worker's.
    """
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    optional = {"base": project["dependencies"], **project["optional-dependencies"]}
    return list(dict.fromkeys(requirement for extra in extras or optional for requirement in optional[extra]))


def locked(*extras: str, root: Path = ROOT) -> list[Locked]:
    """Return the packages of extras, as locked.

    Raises:
        LockError: The lock lacks a package, or has a version below the range of pyproject.toml.
    """
    lock = read(root)
    found = []
    for requirement in wanted(*extras, root=root):
        name, least = name_and_least(requirement)
        if name not in lock or _numbers(lock[name].version) < _numbers(least):
            has = f"has {lock[name].version}" if name in lock else "lacks it"
            raise LockError(f"pyproject.toml asks for {name}>={least}, and requirements.lock {has}. Run: make update")
        found.append(lock[name])
    return found


def chosen(packages: Iterable[Locked], *options: str) -> Iterator[Locked]:
    """Yield the packages in the build that pip's settings choose, for this machine or the one that `options` name.

    By default pip prefers a file that an index lists with its hash: PyPI's torch, which is for CUDA, over a CPU build
    in a folder, or over one whose hash the lock lacks.

    Raises:
        LockError: pip finds no build.
    """
    for package in packages:
        if package.name in BUILT:
            command = [sys.executable, "-P", "-m", "pip", "index", "versions", package.name, "--json", *options]
            done = subprocess.run(command, capture_output=True, text=True)
            versions = json.loads(done.stdout)["versions"] if done.returncode == 0 else []
            builds = [version for version in versions if version.partition("+")[0] == package.version]
            if not builds:
                raise LockError(f"pip finds no {package.name}=={package.version} for this Python:\n{done.stderr}")
            package = replace(package, version=builds[0])
        yield package


def name_and_least(requirement: str) -> tuple[str, str]:
    """Split `PyYAML>=6.0.1; python_version < '4'` into the name, as an index spells it, and the least version.

    Raises:
        LockError: The requirement has another operator, whose range cannot be compared with the lock.
    """
    name, operator, least = requirement.partition(";")[0].strip().partition(">=")
    if not operator or not re.fullmatch(r"\d+(\.\d+)*", least):
        raise LockError(f"pyproject.toml asks for {requirement}; write NAME>=VERSION, as for the other packages")
    return canonical(name), least


def _numbers(version: str) -> list[int]:
    return [int(part) for part in re.findall(r"\d+", version.partition("+")[0])]


def canonical(name: str) -> str:
    """Return a package's name as an index spells it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def closure(lock: Lock, wanted: Iterable[Locked]) -> list[Locked]:
    """Return packages of the lock and everything that they may need, in any build, sorted by name."""
    names = {package.name for package in wanted}
    while more := {package.name for package in lock.values() if names & set(package.needed_by)} - names:
        names |= more
    return [lock[name] for name in sorted(names)]


def changes(old: dict[str, str], new: dict[str, str]) -> Iterator[str]:
    """Yield a line for each changed version: `name old → new`, with `none` for a missing one."""
    for name in sorted({*old, *new}):
        if old.get(name) != new.get(name):
            yield f"{name} {old.get(name, 'none')} → {new.get(name, 'none')}"


def main(extras: list[str]) -> int:
    """Print what these extras ask for, as locked; return 3 if the lock or pip lacks a part of it."""
    try:
        print(*chosen(locked(*extras)), sep="", end="")
    except LockError as error:
        print(error, file=sys.stderr)
        return 3
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
