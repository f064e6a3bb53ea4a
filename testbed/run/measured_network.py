"""Builds a run's network, checks it against the host's budget, and measures its idle links."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

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

if TYPE_CHECKING:  # importing it needs Mininet, which `simulate` and `report` do without
    from testbed.emulation.network.network import Network

#: The file with the kernel's default congestion control.
CONGESTION_CONTROL = Path("/proc/sys/net/ipv4/tcp_congestion_control")


def fits_host(experiment: Experiment, backend: str, strict: bool, display: Display) -> bool:
    """Return whether an experiment fits the host's budget under a backend, and print a warning if it does not.

    A budget that is not known is measured first, which takes about five seconds.

    Raises:
        TooMuch: The experiment exceeds the budget, and `strict` is set.
        BudgetError: The budget can't be measured.
    """
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
    """Discard the host's budget if the reasons of a run's verdict contradict it; the next run then measures it again.

    `fits` is whether the run fits the budget, or None if that was not checked.
    """
    if fits is not None and fits == host_was_short(reasons):
        budget.contradict()


class FidelityMeasurements:
    """The fidelity of each link that a run ever had. The constructor measures all links, which must be idle."""

    def __init__(self, testbed: Testbed) -> None:
        #: The links' errors, measured by probes on the idle link.
        self.measured: dict[str, LinkFidelity] = testbed.measure()
        #: The links' relative rate errors by the shaper's counters.
        self.rate_errors: dict[str, float] = {}
        self._testbed = testbed

    def follow_swap(self, added: set[str]) -> None:
        """Measure a swap's new links while they are idle, and keep the counters of the others.

        To be called after the new links are built, and before a route moves or a link is removed.
        """
        self.keep()
        if added:
            found = self._testbed.measure(added)
            self.measured |= {
                name: its.worst(self.measured[name]) if name in self.measured else its for name, its in found.items()
            }

    def keep(self) -> None:
        """Record the rate errors by the shaper's counters now."""
        counters = self._testbed.network.shaper.counters()
        for name, its in counters.items():  # a link of an earlier network may have had this name
            if its.rate_error is not None:
                self.rate_errors[name] = max(its.rate_error, self.rate_errors.get(name, 0.0), key=abs)


@dataclass(frozen=True, slots=True)
class MeasuredNetwork:
    """A network that is built and measured: its manifest, and the fidelity of its links.

    `fits` is whether the experiment fits the host's budget.
    """

    manifest: Manifest
    fits: bool
    fidelity: FidelityMeasurements


def build_and_measure(
    experiment: Experiment, testbed: Testbed, image: str | None, directory: RunDirectory, display: Display, strict: bool
) -> MeasuredNetwork:
    """Open the testbed, which the caller closes, build its network, and measure the idle links.

    The manifest names the workers' `image`, None without containers. `strict` refuses an experiment that exceeds the
    host's budget, before anything is built; otherwise the display shows a warning.

    Raises:
        TooMuch: The experiment exceeds the host's budget, and `strict` is set.
        ShapingError: The shaper can't do what the experiment asks of a link now or later.
    """
    testbed.open()
    network = testbed.network
    _check_later(experiment, network)
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
        fidelity = FidelityMeasurements(testbed)
    return MeasuredNetwork(manifest, fits, fidelity)


def _check_later(experiment: Experiment, network: Network) -> None:
    """Raise ShapingError if a link can't have the values of an event, or those in a network to swap to."""
    for topology in experiment.networks.values():
        network.check_links(topology)
    for change in (event.change for event in experiment.spec.events):
        if change is not None:
            network.links_in_force.check_values(change)
