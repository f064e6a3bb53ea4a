"""Packages that pip installs: pyproject.toml has each one's range, requirements.lock the version and its files' hashes.

pip is given the lock as constraints: it takes the packages that are asked for, and of the others those that they need
in the build it finds. So what torch needs for CUDA, 2.5 GB, comes with a torch built for CUDA and not without.

    python -m testbed.emulation.containers.requirements EXTRA...    prints what these extras ask for, as locked

It needs the standard library and pip alone, since what it prints is what makes the environment.
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

#: What comes in builds for different machines (`2.13.0+cpu`), among which pip's settings choose: an index, a folder.
BUILT = frozenset({"torch"})

#: An entry as uv writes it: `name==1.2 ; marker \`, a line a hash, and in comments whose dependency it is.
ENTRY = re.compile(r"^([\w.-]+)==([^\s;\\]+)(?: ; ([^\\\n]+?))?(?: \\)?\n((?:^ +.*\n)*)", re.MULTILINE)


class LockError(Exception):
    """pyproject.toml and requirements.lock do not agree; the text says where and what to do."""


@dataclass(frozen=True, slots=True)
class Locked:
    """A package of the lock: `needed_by` are names of packages, or of the file that pins it."""

    name: str
    version: str
    marker: str | None
    hashes: tuple[str, ...]
    needed_by: tuple[str, ...]

    @property
    def requirement(self) -> str:
        """It as pip reads it in a file of requirements."""
        marker = f" ; {self.marker}" if self.marker else ""
        lines = [f"{self.name}=={self.version}{marker}", *(f"    --hash=sha256:{digest}" for digest in self.hashes)]
        return " \\\n".join(lines) + "\n"

    def __str__(self) -> str:
        return f"{self.requirement}    # via {', '.join(self.needed_by)}\n"


Lock = dict[str, Locked]


def parse(text: str) -> Lock:
    """The packages of a lock by their names."""
    lock = {}
    for name, version, marker, rest in ENTRY.findall(text):
        hashes = tuple(re.findall(r"--hash=sha256:([0-9a-f]{64})", rest))
        users = re.findall(r"(?:# via|,) ([\w.-]+)", rest)
        lock[name] = Locked(name, version, marker or None, hashes, tuple(users))
    return lock


def read(root: Path = ROOT) -> Lock:
    """The lock of a checkout."""
    return parse((root / "requirements.lock").read_text())


def wanted(*extras: str, root: Path = ROOT) -> list[str]:
    """Return what extras of pyproject.toml ask for (`torch>=2.6`), of all extras where none is named.

    The extra `base` is what the package needs without any; `sync` is what a worker needs.
    """
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    optional = {"base": project["dependencies"], **project["optional-dependencies"]}
    return list(dict.fromkeys(requirement for extra in extras or optional for requirement in optional[extra]))


def locked(*extras: str, root: Path = ROOT) -> list[Locked]:
    """Return the packages that extras ask for, as they are locked.

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
    """The packages, each in the build that pip takes by its settings, here or for the machine that these options name.

    Left to itself, pip prefers a file that an index lists with its hash: PyPI's torch, which is for CUDA, to a
    build for the CPU in a folder, or to one whose hash the lock lacks. Raises LockError when pip finds no build.
    """
    for package in packages:
        if package.name in BUILT:
            command = [sys.executable, "-m", "pip", "index", "versions", package.name, "--json", *options]
            done = subprocess.run(command, capture_output=True, text=True)
            versions = json.loads(done.stdout)["versions"] if done.returncode == 0 else []
            builds = [version for version in versions if version.partition("+")[0] == package.version]
            if not builds:
                raise LockError(f"pip finds no {package.name}=={package.version} for this Python:\n{done.stderr}")
            package = replace(package, version=builds[0])
        yield package


def name_and_least(requirement: str) -> tuple[str, str]:
    """Return the parts of `PyYAML>=6.0.1; python_version < '4'`, the name as an index spells it.

    Raises:
        LockError: The requirement has another operator, whose range could not be held against the lock.
    """
    name, operator, least = requirement.partition(";")[0].strip().partition(">=")
    if not operator or not re.fullmatch(r"\d+(\.\d+)*", least):
        raise LockError(f"pyproject.toml asks for {requirement}; write NAME>=VERSION, as for the other packages")
    return canonical(name), least


def _numbers(version: str) -> list[int]:
    return [int(part) for part in re.findall(r"\d+", version.partition("+")[0])]


def canonical(name: str) -> str:
    """A package's name as an index spells it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def closure(lock: Lock, wanted: Iterable[Locked]) -> list[Locked]:
    """Some packages of the lock and all that they may need, in any build, by name."""
    names = {package.name for package in wanted}
    while more := {package.name for package in lock.values() if names & set(package.needed_by)} - names:
        names |= more
    return [lock[name] for name in sorted(names)]


def changes(old: dict[str, str], new: dict[str, str]) -> Iterator[str]:
    """From versions by name to others, a line each: `name old → new`, with `none` where there is none."""
    for name in sorted({*old, *new}):
        if old.get(name) != new.get(name):
            yield f"{name} {old.get(name, 'none')} → {new.get(name, 'none')}"


def main(extras: list[str]) -> int:
    """Print what these extras ask for, as it is locked; 3 where the lock or pip has not all of it."""
    try:
        print(*chosen(locked(*extras)), sep="", end="")
    except LockError as error:
        print(error, file=sys.stderr)
        return 3
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
