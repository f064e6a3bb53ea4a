"""Kernel modules: loading them, and which package of the distribution brings those that are not there."""

from __future__ import annotations

import platform
import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class KernelPackage:
    """A package with modules: for the kernel that runs, or with a kernel to restart the machine with."""

    name: str
    restart: bool = False


def package_of_modules(release: str, distribution: str) -> KernelPackage | None:
    """What brings modules that a kernel lacks; None for a kernel that is not the distribution's own.

    `release` is as `uname -r` has it, `distribution` the ID of os-release(5). Ubuntu keeps the rarer modules in a
    package of their own. Debian's `cloud` kernels are built without them, so the other kernel has to be started.
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
    """As `package_of_modules`, for this machine."""
    try:
        distribution = platform.freedesktop_os_release()["ID"]
    except OSError:
        return None
    return package_of_modules(platform.release(), distribution)


def load(modules: Sequence[str]) -> str | None:
    """Load modules; None if the kernel has them all now, else what modprobe said."""
    if shutil.which("modprobe") is None:
        return "the program modprobe is not installed"
    done = subprocess.run(["modprobe", "--all", *modules], capture_output=True, text=True, check=False)
    return (done.stderr.strip() or f"modprobe ended with exit code {done.returncode}") if done.returncode else None
