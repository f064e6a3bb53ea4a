"""Kernel modules: loading them, and the distribution's package that has missing ones."""

from __future__ import annotations

import platform
import re
import shutil
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

#: Settings of all bridges in the reader's network namespace. br_netfilter brings them, and switches them on.
BRIDGE_SETTINGS = Path("/proc/sys/net/bridge")


@dataclass(frozen=True, slots=True)
class KernelPackage:
    """A package with kernel modules: for the running kernel, or (`restart`) with a kernel to boot instead."""

    name: str
    restart: bool = False


def package_of_modules(release: str, distribution: str) -> KernelPackage | None:
    """Return the package with modules that a kernel lacks; None if the kernel is not the distribution's own.

    The release is that of `uname -r`, the distribution the ID in os-release(5). Ubuntu keeps rare modules in a separate
    package. Debian builds its `cloud` kernels without them, so the other kernel has to be booted.
    """
    if distribution == "ubuntu" and re.fullmatch(r"\d+\.\d+\.\d+-\d+-[a-z][a-z0-9-]*", release):
        return KernelPackage(f"linux-modules-extra-{release}")
    if distribution == "debian" and (debian := re.fullmatch(r"\d\S*?-(cloud-)?(amd64|arm64)", release)):
        cloud, machine = debian.groups()
        return (
            KernelPackage(f"linux-image-{machine}", restart=True) if cloud else KernelPackage(f"linux-image-{release}")
        )
    if distribution in ("fedora", "rhel", "centos", "rocky", "almalinux"):
        return KernelPackage(f"kernel-modules-extra-{release}")
    return None


def package_here() -> KernelPackage | None:
    """Return `package_of_modules` for this machine."""
    try:
        distribution = platform.freedesktop_os_release()["ID"]
    except OSError:
        return None
    return package_of_modules(platform.release(), distribution)


def load(modules: Sequence[str]) -> str | None:
    """Load modules; return None if the kernel has them all now, else modprobe's error.

    If br_netfilter is loaded here, it is switched off for this machine's own bridges. Otherwise the packets of their
    virtual machines would begin to pass this machine's firewall.
    """
    if shutil.which("modprobe") is None:
        return "the program modprobe is not installed"
    was_loaded = BRIDGE_SETTINGS.is_dir()
    done = subprocess.run(["modprobe", "--all", *modules], capture_output=True, text=True, check=False)
    if not was_loaded:
        with suppress(OSError):  # in a container whose settings are read-only
            for setting in BRIDGE_SETTINGS.glob("bridge-nf-call-*"):
                setting.write_text("0")
    return (done.stderr.strip() or f"modprobe ended with exit code {done.returncode}") if done.returncode else None
