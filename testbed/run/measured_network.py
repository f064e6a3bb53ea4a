"""A run's network before anybody uses it: built, written down in the manifest, and measured from outside."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.markup import escape

from testbed.emulation.host import budget
from testbed.emulation.links.probe import LinkFidelity
from testbed.emulation.testbed import Testbed
from testbed.run.conclusion.verdict import host_was_short
from testbed.run.directory import RunDirectory
from testbed.run.errors import TooMuch
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
    fidelity: FidelityMeasurements


def build_and_measure(
    experiment: Experiment, testbed: Testbed, image: str, directory: RunDirectory, display: Display, strict: bool
) -> MeasuredNetwork:
    """Open the testbed and build its network. Whoever called closes it.

    When the experiment asks for more than the host's measured budget, that is said before anything is built; `strict`
    refuses then, with TooMuch.
    """
    testbed.open()
    network = testbed.network
    fits = testbed.placed or fits_host(experiment, network.shaper.name, strict, display)
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
        fidelity = FidelityMeasurements(testbed)
    return MeasuredNetwork(manifest, fits, fidelity)


def fits_host(experiment: Experiment, backend: str, strict: bool, display: Display) -> bool:
    """Say it where an experiment asks for more than the host carries under this backend; `strict` refuses then, with
    TooMuch. A budget that is not known is measured first, about five seconds; BudgetError when that fails."""
    kept = budget.host_budget(backend)
    if kept is None:
        with display.step("what this host carries"):
            kept = budget.measure_budget(backend)
    excess = budget.need(experiment, kept).excess(kept, experiment.spec.scale)
    if excess is None:
        return True
    text = f"{experiment.file} asks for more than this host carries: {excess} ({kept})"
    if strict:
        raise TooMuch(text)
    display.say(f"  [yellow]{escape(text)}[/]")
    return False


def recheck_budget(fits: bool | None, reasons: Sequence[str]) -> None:
    """Have the budget measured again where the `reasons` of a run's verdict say otherwise of the host than it did.

    `fits` is what it said of the run, None where nobody asked.
    """
    if fits is not None and fits == host_was_short(reasons):
        budget.contradict()


class FidelityMeasurements:
    """`measured` when each link was idle, before anybody used it; `rate_errors` by what it has carried since."""

    def __init__(self, testbed: Testbed) -> None:
        """Measures all links of a network that nobody uses yet."""
        self.measured: dict[str, LinkFidelity] = testbed.measure()
        self.rate_errors: dict[str, float] = {}
        self._testbed = testbed

    def follow_swap(self, added: set[str]) -> None:
        """A swap has built its new links, and has not moved any route or removed anything yet: the moment to measure
        the new ones idle, and to keep what is known of the others."""
        self.keep()
        if added:
            self.measured |= self._testbed.measure(added)

    def keep(self) -> None:
        """Note what the shaper's counters say by now."""
        counters = self._testbed.network.shaper.counters()
        self.rate_errors |= {name: error for name, c in counters.items() if (error := c.rate_error) is not None}
