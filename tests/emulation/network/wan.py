"""A real network over the backend that this kernel has. Plain namespaces stand for the workers' containers."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

from testbed.emulation.network.namespace import Namespace
from testbed.emulation.network.network import Network
from testbed.emulation.shaping import open_shaper
from testbed.link import LinkState
from testbed.run.conclusion.verdict import RTT_TOLERANCE_S
from testbed.spec.topology import Topology

#: The pings of a series: enough that one of them is on time, as a rule.
PINGS = 8


@dataclass
class Wan:
    """A network that is up, and questions to its workers."""

    network: Network
    #: Each state that was put in force, with its link, in order.
    states: list[tuple[str, LinkState]] = field(default_factory=list)

    def run(self, worker: str, *words: str) -> str:
        """Run a command in a worker's namespace, and return its output, whatever its exit code."""
        process = self.network.container(worker).popen([*words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        return process.communicate()[0].decode()

    def address(self, worker: str) -> str:
        return self.network.address(next(w for w in self.network.topology.workers if w.name == worker))

    def round_trip_s(self, source: str, target: str, count: int = PINGS, wait_s: int = 20) -> float | None:
        """Return the least of `count` round trips, or None without any answer. The first carries address resolution."""
        words = ("ping", "-nq", "-c", str(count), "-i", "0.02", "-W", str(wait_s), self.address(target))
        closing = re.search(r"= ([\d.]+)/", self.run(source, *words))
        return float(closing[1]) / 1e3 if closing else None

    def assert_answered(self, source: str, target: str, delays_s: float) -> None:
        """Assert that a ping is answered no sooner than its delays allow: a host may delay a packet, never hurry it."""
        found = self.round_trip_s(source, target)
        assert found is not None, f"{target} does not answer {source}"
        assert found >= delays_s - RTT_TOLERANCE_S[self.network.shaper.name]


@contextmanager
def up(topology: Topology, name: str = "andes", fit_transport: bool = True) -> Iterator[Wan]:
    """Build a network with a namespace for each worker."""
    states: list[tuple[str, LinkState]] = []
    with ExitStack() as stack:
        shaper = stack.enter_context(open_shaper())
        network = Network(name, topology, shaper, lambda _, link, state: states.append((link, state)), fit_transport)
        stack.callback(network.stop)
        network.build()
        holders = {worker.name: Namespace() for worker in topology.workers}
        for holder in holders.values():
            stack.callback(holder.close)
        network.join({name: holder.holder for name, holder in holders.items()})
        yield Wan(network, states)
