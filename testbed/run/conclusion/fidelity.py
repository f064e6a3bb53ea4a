"""How near each link that a run ever had is to what was asked of it: measured idle, and by the shaper's counters."""

from __future__ import annotations

from testbed.emulation.links.probe import LinkFidelity
from testbed.emulation.testbed import Testbed


class KnownFidelity:
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
