"""Checks of what this machine can do, each with the fix for what is missing.

A check is a value: a function that looks at one thing, and a fix if a program can do it. `examine` looks and changes
nothing. `fix_all` applies the fixes of failed checks in order, since later fixes need earlier ones, and looks again.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, TypeVar

from testbed import compiler
from testbed.emulation import find_mininet
from testbed.emulation.containers import engine
from testbed.emulation.containers.image import INSTALL, KIND_LABEL
from testbed.emulation.containers.limits import missing_limits
from testbed.emulation.errors import ending_of
from testbed.emulation.host import budget, fixes
from testbed.emulation.host.fixes import CannotFix
from testbed.emulation.network import switch
from testbed.emulation.network.switch import available_switches
from testbed.emulation.shaping import available_backends
from testbed.spec.topology import SwitchName

Name = TypeVar("Name", bound=str)

#: Programs that the emulation calls, and the Debian package of each.
PROGRAMS = {
    "ethtool": "ethtool",
    "ip": "iproute2",
    "iptables": "iptables",
    "iperf3": "iperf3",
    "mnexec": "mininet",
    "modprobe": "kmod",
    "mount": "mount",
    "nsenter": "util-linux",
    "ping": "iputils-ping",
    "setpriv": "util-linux",
    "sysctl": "procps",
    "tc": "iproute2",
}

#: What the extra `emulate` brings and a run imports or calls, and the least version of pip, whose `index` has `--json`.
EXTRA = ("cryptography", "pip", "prometheus_client", "sklearn")
PIP = 26

#: The Debian packages that make the worker image.
IMAGE_PACKAGES = ("mmdebstrap", "debian-archive-keyring")

#: The kernel modules that each backend needs. `sch_tbf` limits the rate of the workers' own interfaces.
MODULES = {
    "netem": ("sch_netem", "sch_htb", "sch_tbf"),
    "userspace": ("xt_NFQUEUE", "nfnetlink_queue", "br_netfilter", "sch_tbf"),
}

#: The kernel modules of the switches that are not part of every kernel.
SWITCH_MODULES: dict[SwitchName, tuple[str, ...]] = {"openvswitch": ("openvswitch",), "openvswitch-user": ("tun",)}


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check of this machine.

    Attributes:
        name: What was looked at.
        found: What was found.
        remedy: What to do; empty if all is well.
        blocks: Whether nothing runs until this is fixed.
        fixable: Whether `fix_all` would try to fix it.
        fixed: Whether `fix_all` fixed it.
        fix: What `fix_all` did, or why it failed.
    """

    name: str
    found: str
    remedy: str = ""
    blocks: bool = False
    fixable: bool = False
    fixed: bool = False
    fix: str = ""

    @property
    def ok(self) -> bool:
        """True if all is well."""
        return not self.remedy


class Probes:
    """Results of trying out backends and switches, shared by all checks."""

    @cached_property
    def backends(self) -> dict[str, str | None]:
        """Each shaping backend, and why it does not work here (None if it works)."""
        return available_backends()

    @cached_property
    def engine_info(self) -> Mapping[str, Any] | None:
        """The Docker engine's information about itself; None if no engine answers."""
        try:
            return dict(engine.connect().info())
        except engine.ENGINE_ERRORS:
            return None

    @cached_property
    def switches(self) -> dict[SwitchName, str | None]:
        """Each switch, and why it does not work here (None if it works)."""
        return available_switches()


@dataclass(frozen=True, slots=True)
class Check:
    """One check. `fix` repairs a failure and returns what it did; an error that it raises says why it could not."""

    look: Callable[[Probes], Finding]
    fix: Callable[[], str] | None = None

    def finding(self, probes: Probes) -> Finding:
        """Return the check's result on this machine now."""
        found = self.look(probes)
        return replace(found, fixable=self.fix is not None and not found.ok)


def examine() -> list[Finding]:
    """Run all checks; takes a second and changes nothing."""
    probes = Probes()
    return [check.finding(probes) for check in CHECKS]


def fix_all() -> list[Finding]:
    """Fix what can be fixed and run all checks again. Raises nothing: a finding says why its fix failed."""
    attempts = [_attempt(check) for check in CHECKS]
    return [
        replace(found, fix=tried, fixed=bool(tried) and found.ok)
        for found, tried in zip(examine(), attempts, strict=True)
    ]


def _attempt(check: Check) -> str:
    """Return what a fix did, or why it failed; empty if there was nothing to fix, or no fix."""
    if check.fix is None or check.look(Probes()).ok:  # an earlier fix may have repaired it
        return ""
    if os.geteuid() != 0:
        return "this fix needs root; run `testbed doctor --fix` with sudo"
    try:
        return check.fix()
    except CannotFix as error:
        return str(error)
    except Exception as error:
        return ending_of(error)[1]


# Checks ----------------------------------------------------------------------------------------------------------


def _root(_: Probes) -> Finding:
    if os.geteuid() == 0:
        return Finding("root", "yes")
    return Finding("root", "no", "run it with sudo: building networks and containers needs root", blocks=True)


def _missing_programs() -> list[str]:
    return [name for name in PROGRAMS if shutil.which(name) is None]


def _packages_of(programs: Sequence[str]) -> list[str]:
    return sorted({PROGRAMS[name] for name in programs})


def _programs(_: Probes) -> Finding:
    missing = _missing_programs()
    if not missing:
        return Finding("programs", ", ".join(PROGRAMS))
    remedy = f"apt-get install {' '.join(_packages_of(missing))}"
    return Finding("programs", f"missing: {', '.join(missing)}", remedy, blocks=True)


def _mininet(_: Probes) -> Finding:
    if find_mininet():
        return Finding("mininet", "importable")
    remedy = "apt-get install mininet"
    return Finding("mininet", f"not importable in Python {platform.python_version()}", remedy, blocks=True)


def _python_packages(_: Probes) -> Finding:
    """Check that the extra `emulate` is installed, which a wheel may have been installed without."""
    needed = (*EXTRA, "setuptools") if sys.version_info >= (3, 12) else EXTRA
    missing = [name for name in needed if importlib.util.find_spec(name) is None]
    if not missing and int(importlib.metadata.version("pip").partition(".")[0]) < PIP:
        missing = [f"pip {PIP} or later"]
    if missing:
        return Finding("Python packages", f"missing: {', '.join(missing)}", INSTALL, blocks=True)
    return Finding("Python packages", "those of the extra `emulate`")


def _forwarding(_: Probes) -> Finding:
    """Check that a namespace can forward, in a scratch namespace: it cannot where /proc/sys is read-only."""
    if os.geteuid() != 0:
        return Finding("forwarding", "unknown", "testing it needs root; run with sudo", blocks=True)
    command = ["unshare", "--net", "sysctl", "--quiet", "--write", "net.ipv4.ip_forward=1"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        complaint = done.stderr.strip() if done.returncode else None
    except OSError as error:
        complaint = str(error)
    if complaint is None:
        return Finding("forwarding", "a network namespace can forward packets")
    return Finding("forwarding", complaint, "as root: mount -o remount,bind,rw /proc/sys", blocks=True)


def _first_working(complaints: Mapping[Name, str | None]) -> Name | None:
    """Return the first backend or switch without a complaint, which `auto` chooses; None if none works."""
    return next((name for name, complaint in complaints.items() if complaint is None), None)


def _backend(probes: Probes, name: str) -> Finding:
    complaint, chosen = probes.backends[name], _first_working(probes.backends)
    if complaint is not None:
        return Finding(f"shaping: {name}", "no", complaint, blocks=chosen is None)
    return Finding(f"shaping: {name}", "works; `auto` chooses this one" if name == chosen else "works")


def _switch(probes: Probes, name: SwitchName) -> Finding:
    """Check a switch. No finding blocks: the bridge always works."""
    complaint = probes.switches[name]
    if complaint is not None:
        return Finding(f"switch: {name}", "no", complaint)
    chosen = _first_working(probes.switches)
    return Finding(f"switch: {name}", "works; `auto` chooses this one" if name == chosen else "works")


def _engine(_: Probes) -> Finding:
    try:
        client = engine.connect()
        found = f"{client.version()['Version']} at {engine.address()}"
        engine.check_namespace(client)
    except engine.ForeignEngineError as error:
        return Finding("Docker engine", f"{found}, in another PID namespace", str(error), blocks=True)
    except engine.ENGINE_ERRORS as error:
        return Finding("Docker engine", "no engine answers", ending_of(error)[1], blocks=True)
    return Finding("Docker engine", found)


def _worker_image(_: Probes) -> Finding:
    """Check that a worker image is there or can be built."""
    if base := os.environ.get("BASE_IMAGE"):
        return Finding("worker image", f"is built on {base} (BASE_IMAGE)")
    if shutil.which("mmdebstrap") is not None:
        return Finding("worker image", "is there, or is built in a minute by the first run")
    with suppress(*engine.ENGINE_ERRORS):
        if engine.connect().api.images(filters={"label": f"{KIND_LABEL}=worker"}):
            return Finding("worker image", "is there; mmdebstrap, which builds the next one, is missing")
    remedy = f"apt-get install {' '.join(IMAGE_PACKAGES)}, or set BASE_IMAGE to an image with Python"
    return Finding("worker image", "can't be built without mmdebstrap", remedy, blocks=True)


def _limits(probes: Probes) -> Finding:
    """Check that the Docker engine can limit the containers' memory, processes and logs.

    No finding blocks: a run's manifest lists the missing limits, and a limit that a topology declares is refused.
    """
    if probes.engine_info is None:
        return Finding("container limits", "unknown without a Docker engine")
    if not (missing := missing_limits(probes.engine_info)):
        return Finding("container limits", "memory, swap, processes and logs are limited")
    return Finding("container limits", f"no limit on {', '.join(missing)}", "; ".join(missing.values()))


def _gpus(probes: Probes) -> Finding:
    if probes.engine_info is None:
        return Finding("GPUs", "unknown without a Docker engine")
    if "nvidia" in probes.engine_info.get("Runtimes", {}):
        return Finding("GPUs", "the Docker engine offers GPUs to containers")
    return Finding("GPUs", "the Docker engine offers no GPUs; workers compute on CPUs")


def _leftovers(_: Probes) -> Finding:
    stale = fixes.stale_networks()
    if not stale:
        return Finding("leftovers", "none")
    return Finding(
        "leftovers", f"networks whose process ended without cleaning up: {', '.join(stale)}", "testbed network clean"
    )


def _working_backend() -> str | None:
    """Return the backend to measure with; None while a blocking finding has to be fixed first."""
    probes = Probes()
    if any(check.look(probes).blocks for check in CHECKS if check.look is not _budget):
        return None
    return _first_working(probes.backends)


def _budget(probes: Probes) -> Finding:
    for name, complaint in probes.backends.items():
        if complaint is None and (kept := budget.host_budget(name)) is not None:
            carries = f"{kept.bits_per_second / 1e6:.0f} Mbit/s summed over all links, {kept.cores} cores ({name})"
            return Finding("budget", carries)
    return Finding("budget", "not measured yet", "the first `testbed run` measures it in about five seconds")


# Fixes -----------------------------------------------------------------------------------------------------------


def _fix_backend(name: str) -> str:
    if name == "userspace" and shutil.which("cc") is None:
        return fixes.install(compiler.PACKAGES.split())
    return fixes.load_modules(MODULES[name])


def _fix_switch(name: SwitchName) -> str:
    if switch.missing_programs():
        return fixes.install([switch.PACKAGE])
    return fixes.load_modules(SWITCH_MODULES[name])


CHECKS = (
    Check(_root),
    Check(_programs, lambda: fixes.install(_packages_of(_missing_programs()))),
    Check(_mininet, lambda: fixes.install(["mininet"])),
    Check(_python_packages),
    Check(_forwarding, fixes.let_settings_be_written),
    *(Check(partial(_backend, name=name), partial(_fix_backend, name)) for name in MODULES),
    Check(partial(_switch, name="bridge")),
    *(Check(partial(_switch, name=name), partial(_fix_switch, name)) for name in SWITCH_MODULES),
    Check(_engine, fixes.start_engine),
    Check(_worker_image, lambda: fixes.install(IMAGE_PACKAGES)),
    Check(_limits),
    Check(_gpus),
    Check(_leftovers, fixes.take_leftovers_away),
    Check(_budget, lambda: fixes.measure_budget(_working_backend())),
)
