"""Renew requirements.lock from the ranges of pyproject.toml, and print the changes: the first half of `make update`.

    ./setup.sh lock

uv finds the newest versions that fit together for every Python and machine, with the hashes of all their files, on the
index that pip's settings name. Then pip reports which files it would install here. If it takes a build from another
place of its settings (torch for the CPU, say), the hashes of that build enter the lock too: of every file, where that
place is an index with hashes. Hashes of a version that an earlier renewal found under other settings stay.

pip and uv are those beside the running Python; this program needs the standard library alone.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping
from dataclasses import replace

from containers.pip_settings import PIP, UV, Settings, ToolError, cache_options, output, pip_settings, variables
from testbed.emulation.containers.requirements import (
    ROOT,
    Lock,
    canonical,
    changes,
    parse,
    read,
    wanted,
)

LOCK = ROOT / "requirements.lock"
HEADER = """\
# What pip installs, here and in the worker image: every package with the hashes of its files. It is made, with uv, from
# the ranges of pyproject.toml: to change it, or where a merge left it torn, run `make update`.
"""

#: The command of uv: for every Python from this one on, and every machine. A version that fits all is preferred to a
#: newer one that fits some.
COMPILE = (
    *(UV, "pip", "compile", "--quiet"),
    *("--universal", "--python-version=3.11", "--fork-strategy=fewest"),
)


def resolve(settings: Settings) -> Lock:
    """Return the newest versions that fit the ranges, one for all Pythons, with the hashes that pip's index lists."""
    return _uv(settings, "--generate-hashes", "--all-extras", "--annotation-style=line", "pyproject.toml")


def builds(lock: Lock, settings: Settings) -> dict[str, set[str]]:
    """Return by name the hashes of the builds that pip would install here and that the lock lacks."""
    constraints = ROOT / "build" / "constraints.txt"
    constraints.write_text("".join(f"{package.name}=={package.version}\n" for package in lock.values()))
    command = [*PIP, "install", "--quiet", "--dry-run", "--only-binary=:all:", "--ignore-installed", "--report=-"]
    report = json.loads(output([*command, f"--constraint={constraints}", *wanted()]))
    found = {}
    for item in report["install"]:
        name, version = canonical(item["metadata"]["name"]), item["metadata"]["version"]
        digest = item["download_info"]["archive_info"]["hashes"]["sha256"]
        if digest not in lock[name].hashes:
            found[name] = {digest} | _files(f"{name}=={version}", settings)
    return found


def _files(build: str, settings: Settings) -> set[str]:
    """Return the hashes of all files of a build on pip's indexes, also for other Pythons and machines."""
    indexes = [f"--extra-index-url={url}" for url in settings.get("extra-index-url", [])]
    options = ("--index-strategy=unsafe-best-match", "--generate-hashes", "--no-deps")
    try:
        listed = _uv(settings, *options, *indexes, "-", given=build)
    except ToolError:
        return set()  # the build is on no index, but in a folder that pip's settings name as `find-links`
    return {digest for package in listed.values() for digest in package.hashes}


def _uv(settings: Settings, *arguments: str, given: str = "") -> Lock:
    index = [f"--default-index={url}" for url in settings.get("index-url", [])]
    command = [*COMPILE, "--system-certs", *cache_options(), *index, *arguments]
    return parse(output(command, given, variables(settings)))


def renewed(old: Lock, resolved: Lock, more: Mapping[str, Iterable[str]]) -> Lock:
    """Return the resolved lock, with the hashes in `more` and the old hashes of versions that stay."""
    lock = {}
    for name, package in resolved.items():
        known = old[name].hashes if name in old and old[name].version == package.version else ()
        hashes = sorted({*package.hashes, *known, *more.get(name, ())})
        lock[name] = replace(package, hashes=tuple(hashes))
    return lock


def said(old: Lock, new: Lock) -> list[str]:
    """Return a line for each change: versions, and files of versions that stay."""
    lines = list(changes(*({name: package.version for name, package in lock.items()} for lock in (old, new))))
    for name in sorted(old.keys() & new.keys()):
        more = len({*new[name].hashes} - {*old[name].hashes})
        if more and old[name].version == new[name].version:
            lines.append(f"{name} {new[name].version}: {more} more file{'s' * (more > 1)}")
    return lines


def main() -> int:
    """Renew the lock and print the changes. Returns 3 where uv or pip finds no answer."""
    old = read() if LOCK.exists() else {}
    try:
        settings = pip_settings()
        print("asking the index for the newest versions, and pip which files it would take here")
        resolved = renewed(old, resolve(settings), {})
        lock = renewed(old, resolved, builds(resolved, settings))
    except ToolError as error:
        print(error, file=sys.stderr)
        return 3
    LOCK.write_text(HEADER + "".join(str(lock[name]) for name in sorted(lock)))
    print(*(said(old, lock) or ["requirements.lock: nothing changed"]), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
