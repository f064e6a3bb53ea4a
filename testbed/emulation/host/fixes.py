"""The fixes of `testbed doctor --fix`. Each function fixes one thing and returns what it did.

It raises CannotFix if it knows why it cannot, or else the error of what it called.
"""

from __future__ import annotations

import importlib
import os
import shlex
import shutil
import subprocess
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress

from testbed.emulation import cleanup
from testbed.emulation.containers import engine
from testbed.emulation.host import budget, kernel
from testbed.emulation.process import how_it_ended

#: The seconds in which another program, such as an upgrade after the boot, may hold apt's locks; as in setup.sh.
LOCK_S, LOCK_LOOK_S = 300.0, 3.0
#: apt's error where another program holds the lock of its lists. apt-get can wait for dpkg's lock alone.
LOCKED = "Could not get lock"

#: The number of lines quoted from a failed command's output.
OUTPUT_TAIL_LINES = 5


class CannotFix(Exception):
    """A fix failed; the text says why."""


def install(packages: Iterable[str]) -> str:
    """Install packages of the distribution."""
    options = ("--yes", "--no-install-recommends", "-o", f"DPkg::Lock::Timeout={LOCK_S:.0f}")
    command = ["apt-get", "install", *options, *packages]
    if shutil.which(command[0]) is None:
        raise CannotFix(f"this machine has no apt-get; install {' '.join(packages)} by hand")
    _update_lists()
    _run(command)
    importlib.invalidate_caches()  # the packages may include a Python package
    return f"ran {shlex.join(command)}"


def _update_lists() -> None:
    """Update apt's lists. Waits up to LOCK_S for another program that does so."""
    until_s = time.monotonic() + LOCK_S
    while True:
        try:
            _run(["apt-get", "update"])
            return
        except CannotFix as error:
            if LOCKED not in str(error) or time.monotonic() > until_s:
                raise
        time.sleep(LOCK_LOOK_S)


def load_modules(modules: Sequence[str]) -> str:
    """Load kernel modules; install the package that has them if they are missing."""
    complaint = kernel.load(modules)
    if complaint is None:
        return f"loaded {', '.join(modules)}"
    package = kernel.package_here()
    if package is None:
        raise CannotFix(f"{complaint}; this kernel is not the distribution's, so no package has modules for it")
    done = install([package.name])
    if package.restart:
        raise CannotFix(f"{done}; the modules come with that kernel: restart the machine with it")
    complaint = kernel.load(modules)
    if complaint is not None:
        raise CannotFix(f"{done}, but {complaint}")
    return f"{done} and loaded {', '.join(modules)}"


def let_settings_be_written() -> str:
    """Make /proc/sys writable, which containers often mount read-only."""
    command = ["mount", "-o", "remount,bind,rw", "/proc/sys"]
    _run(command)
    return f"ran {shlex.join(command)}"


def start_engine() -> str:
    """Start a Docker engine, and install it first if there is none."""
    done = "" if shutil.which("dockerd") else f"{install(['docker.io'])}; "
    try:
        engine.check_namespace(engine.ensure_engine(lambda _: None))
    except engine.EngineError as error:
        raise CannotFix(f"{done}{error}") from error
    if engine.own_engine() is None:  # the distribution's package, or a service, started it
        return f"{done}an engine answers at {engine.address()}"
    return f"{done}started dockerd at {engine.address()} (log: {engine.LOG})"


def stale_networks() -> list[str]:
    """Return the networks of which something is left although the process that ran them has ended."""
    try:
        found = cleanup.find(engine.connect())
    except engine.ENGINE_ERRORS:
        found = cleanup.find(None)  # without an engine, containers cannot be listed
    return [each.network for each in found if each.owner is None]


def take_leftovers_away() -> str:
    """Remove what is left of networks whose process has ended."""
    names = ", ".join(stale_networks())
    try:
        done = cleanup.with_engine(cleanup.clean_crashed)
    except engine.EngineError as error:
        raise CannotFix(f"removed processes and files of {names}, but {error}") from error
    return f"removed what was left of {', '.join(done.networks)}"


def measure_budget(backend: str | None) -> str:
    """Measure what this host carries, with this shaping backend."""
    if backend is None:
        raise CannotFix("other findings must be fixed first")
    measured = budget.measure_budget(backend)
    return f"measured {measured.bits_per_second / 1e6:.0f} Mbit/s summed over all links"


def _run(command: Sequence[str]) -> None:
    """Run a command to its end, also when an interrupt comes: an ended package manager leaves packages half installed.

    Raises:
        CannotFix: There is no such program, or it failed.
    """
    try:
        process = subprocess.Popen(
            command,
            env={**os.environ, "DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,  # it gets no Ctrl-C
        )
    except OSError as error:
        raise CannotFix(f"{command[0]} cannot be run: {error.strerror}") from error
    try:
        said, _ = process.communicate()
    except BaseException:
        with suppress(ValueError):  # all its output was read already
            process.communicate()
        process.wait()
        raise
    if process.returncode:
        quoted = " / ".join(said.split("\n")[-OUTPUT_TAIL_LINES:]).strip(" /")
        raise CannotFix(f"{shlex.join(command)} {how_it_ended(process.returncode)}: {quoted}")
