"""How near each link that a run ever had is to what was asked of it: measured idle, and by the shaper's counters."""

from __future__ import annotations

from testbed.emulation.network import Network
from testbed.emulation.probe import LinkFidelity, measure_links


class KnownFidelity:
    """`measured` when each link was idle, before anybody used it; `rate_errors` by what it has carried since."""

    def __init__(self, network: Network) -> None:
        """Measures all links of a network that nobody uses yet."""
        self.measured: dict[str, LinkFidelity] = measure_links(network, lambda _: None)
        self.rate_errors: dict[str, float] = {}
        self._network = network

    def follow_swap(self, added: set[str]) -> None:
        """A swap has built its new links, and has not moved any route or removed anything yet: the moment to measure
        the new ones idle, and to keep what is known of the others."""
        self.keep()
        if added:
            self.measured |= measure_links(self._network, lambda _: None, added)

    def keep(self) -> None:
        """Note what the shaper's counters say by now."""
        counters = self._network.shaper.counters()
        self.rate_errors |= {name: error for name, c in counters.items() if (error := c.rate_error) is not None}
