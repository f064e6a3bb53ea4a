"""A run's network before anybody uses it: built, written down in the manifest, and measured from outside."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from testbed.emulation.testbed import Testbed
from testbed.run.conclusion.fidelity import KnownFidelity
from testbed.run.directory import RunDirectory
from testbed.run.fit import fits_host
from testbed.run.manifest import Manifest
from testbed.run.terminal.display import Display
from testbed.spec.experiment import Experiment

#: The kernel's default.
CONGESTION_CONTROL = Path("/proc/sys/net/ipv4/tcp_congestion_control")


@dataclass(frozen=True, slots=True)
class MeasuredNetwork:
    """What is known by then: whether the experiment `fits` the host's budget, and how near each link is to its file."""

    manifest: Manifest
    fits: bool
    fidelity: KnownFidelity


def build(
    experiment: Experiment, testbed: Testbed, image: str, directory: RunDirectory, display: Display, strict: bool
) -> MeasuredNetwork:
    """Open the testbed and build its network. Whoever called closes it.

    When the experiment asks for more than the host's measured budget, that is said before anything is built; `strict`
    refuses then, with TooMuch.
    """
    testbed.open()
    network = testbed.network
    fits = testbed.budgets_checked or fits_host(experiment, network.shaper.name, strict, display)
    manifest = Manifest(
        directory,
        experiment,
        backend=network.shaper.name,
        realtime_shaping=network.shaper.realtime,
        image=image,
        congestion_control=CONGESTION_CONTROL.read_text().strip(),
    )
    testbed.build()
    manifest.add(offload=network.offload, switch=network.switch, **testbed.record())
    with display.step("links measured from outside"):
        fidelity = KnownFidelity(testbed)
    return MeasuredNetwork(manifest, fits, fidelity)
