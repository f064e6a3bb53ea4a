"""Which package brings a kernel's missing modules, for kernels as the distributions name them."""

from __future__ import annotations

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
