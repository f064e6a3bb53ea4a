"""Which package brings a kernel's missing modules, for kernels as the distributions name them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from testbed.emulation.host import kernel
from testbed.emulation.host.kernel import KernelPackage, package_of_modules

pytestmark = pytest.mark.local


@pytest.mark.parametrize(
    ("release", "distribution", "package"),
    [
        ("6.8.0-45-generic", "ubuntu", KernelPackage("linux-modules-extra-6.8.0-45-generic")),
        ("6.11.0-1018-azure", "ubuntu", KernelPackage("linux-modules-extra-6.11.0-1018-azure")),
        ("6.1.0-18-amd64", "debian", KernelPackage("linux-image-6.1.0-18-amd64")),
        ("6.1.0-18-cloud-amd64", "debian", KernelPackage("linux-image-amd64", restart=True)),
        ("6.12.5+bpo-cloud-arm64", "debian", KernelPackage("linux-image-arm64", restart=True)),
        ("6.9.7-200.fc40.x86_64", "fedora", KernelPackage("kernel-modules-extra-6.9.7-200.fc40.x86_64")),
        ("5.15.167.4-microsoft-standard-WSL2", "ubuntu", None),
        ("6.1.102-firecracker", "debian", None),
        ("6.8.0-45-generic", "debian", None),
    ],
)
def test_the_package_follows_from_kernel_and_distribution(
    release: str, distribution: str, package: KernelPackage | None
) -> None:
    assert package_of_modules(release, distribution) == package


def test_a_module_that_is_nowhere_is_complained_about() -> None:
    assert kernel.load(["no_such_module"])


def test_this_machines_bridges_filter_nothing_once_br_netfilter_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = [tmp_path / "bridge" / f"bridge-nf-call-{name}" for name in ("arptables", "ip6tables", "iptables")]
    modprobe = tmp_path / "modprobe"
    made = "\n".join(["#!/bin/sh", f"mkdir {tmp_path}/bridge", *(f"echo 1 > {file}" for file in settings)])
    modprobe.write_text(f"{made}\n")
    modprobe.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(kernel, "BRIDGE_SETTINGS", tmp_path / "bridge")
    assert kernel.load(["br_netfilter"]) is None
    assert [file.read_text() for file in settings] == ["0"] * 3
    modprobe.write_text("#!/bin/sh\n")  # it is loaded already
    settings[-1].write_text("1")
    assert kernel.load(["br_netfilter"]) is None
    assert [file.read_text() for file in settings] == ["0", "0", "1"], "somebody wants it so"
