"""Measure what a network swap costs a connection that it does not concern: retransmissions over an unchanged link.

    sudo python -m benchmarks.swap [--repeats N]

On netstorm9 (26 directed links) one flow of iperf3 runs over dc1->dc3. Meanwhile the network swaps to one in which five
other links have other rates and delays, and back again. A row is the flow with or without swaps; without them, its
retransmissions are the machine's noise. Both kinds of windows take turns on the same network, so that the machine is
the same for both.
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median

from benchmarks.support.options import Options
from benchmarks.support.program import run_program
from benchmarks.support.table import Table, progress, show
from testbed.emulation.network.network import Network
from testbed.emulation.testbed import Testbed
from testbed.spec.topology import Link, Topology

PRESET = Path(__file__).parents[1] / "topologies" / "netstorm9.yaml"
#: 26 links at full rates are more than a small host carries; one flow runs, at up to a fifth of 155 Mbit/s.
SCALE = 0.2

DELAY_S = 0.01

WATCHED = ("dc1", "dc3")
CHANGED = ("dc4->dc5", "dc5->dc7", "dc6->dc8", "dc8->dc6", "dc9->dc8")

#: Seconds until the flow has found its rate, and of the window after that; the swap comes in the window's middle.
WARM_UP_S, WINDOW_S = 2, 4
REPEATS, QUICK_REPEATS = 10, 3


@dataclass(frozen=True, slots=True)
class Window:
    """One flow. `dropped` are packets that unchanged links dropped from a full queue, those of `flow` included."""

    swapped: bool
    retransmissions: int
    goodput_bps: float
    flow_dropped: int
    others_dropped: int
    unroutable: int
    swap_ms: float | None


def still(topology: Topology) -> Topology:
    """Return the network without traces, whose changes cause retransmissions, and with a delay, which it lacks."""
    links = {
        name: replace(link, trace=None, state=replace(link.state, delay_s=DELAY_S))
        for name, link in topology.links.items()
    }
    return replace(topology, links=links)


def other(topology: Topology) -> Topology:
    """Return the network with half the rate and twice the delay on five links."""

    def changed(link: Link) -> Link:
        state = link.state
        return replace(link, state=replace(state, rate_bps=state.rate_bps / 2, delay_s=state.delay_s * 2))

    return replace(topology, links={**topology.links, **{name: changed(topology.links[name]) for name in CHANGED}})


def windows(network: Network, networks: tuple[Topology, Topology], repeats: int) -> Iterator[Window]:
    """Yield windows without and with a swap in turn."""
    for repeat in range(repeats):
        for swapped in (False, True):
            progress(f"repeat {repeat + 1} of {repeats}, {'a swap' if swapped else 'no swap'}")
            there = network.topology is networks[0]
            yield watch(network, networks[1 if there else 0] if swapped else None)


def watch(network: Network, becoming: Topology | None) -> Window:
    """Run one flow, with a swap in the middle if another network is given."""
    workers = {worker.site: worker for worker in network.topology.workers}
    source, target = (workers[site] for site in WATCHED)
    unchanged = set(network.topology.links) - set(CHANGED)
    server = network.container(target.name).popen(
        ["iperf3", "--server", "--one-off"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    time.sleep(0.3)  # until it listens
    words = ["iperf3", "--client", network.address(target), "--json", "--omit", str(WARM_UP_S), "--time", str(WINDOW_S)]
    flow = network.container(source.name).popen(words, stdout=subprocess.PIPE)
    try:
        time.sleep(WARM_UP_S + WINDOW_S / 2)
        before, unroutable = drops(network), unroutable_packets(network)
        swap_ms = network.swap(becoming).seconds * 1e3 if becoming else None
        said = json.loads(flow.communicate(timeout=WARM_UP_S + WINDOW_S + 20)[0])
        after = drops(network)
    finally:
        for process in (flow, server):
            process.kill()
            process.wait()
    own = {"->".join(WATCHED), "->".join(reversed(WATCHED))}
    lost = {name: after[name] - before[name] for name in unchanged}
    return Window(
        swapped=becoming is not None,
        retransmissions=said["end"]["sum_sent"]["retransmits"],
        goodput_bps=said["end"]["sum_received"]["bits_per_second"],
        flow_dropped=sum(count for name, count in lost.items() if name in own),
        others_dropped=sum(count for name, count in lost.items() if name not in own),
        unroutable=unroutable_packets(network) - unroutable,
        swap_ms=swap_ms,
    )


def drops(network: Network) -> dict[str, int]:
    """Return the packets that each link has dropped from its full queue so far."""
    return {name: counted.dropped_queue for name, counted in network.shaper.counters().items()}


def unroutable_packets(network: Network) -> int:
    """Return the packets that routers found no route for."""
    return sum(network.router(site).unroutable_packets() for site in network.topology.sites)


def main() -> int:
    """Measure and print. Returns the exit code."""
    parser = Options(__doc__)
    parser.add_repeats(REPEATS, QUICK_REPEATS)
    args = parser.parse()
    first = still(Topology.load(PRESET).scaled(SCALE))
    networks = (first, other(first))
    with Testbed(first, name="benchmark-swap", workers="namespaces") as testbed:
        found = list(windows(testbed.network, networks, args.repeats))
        backend = testbed.network.shaper.name
    quiet, swapped = ([window for window in found if window.swapped == kind] for kind in (False, True))
    rows = [
        [
            name,
            " ".join(str(window.retransmissions) for window in kind),
            f"{median(window.retransmissions for window in kind):g}",
            f"{median(window.goodput_bps for window in kind) / 1e6:.2f}",
            str(sum(window.flow_dropped for window in kind)),
            str(sum(window.others_dropped for window in kind)),
            str(sum(window.unroutable for window in kind)),
            f"{median(times):.1f} ms" if (times := [w.swap_ms for w in kind if w.swap_ms is not None]) else "-",
        ]
        for name, kind in (("without a swap", quiet), ("with a swap", swapped))
    ]
    columns = ["", "retransmissions", "median", "Mbit/s", "flow dropped", "others dropped", "no route", "swap takes"]
    title = f"A flow over {'->'.join(WATCHED)} while {len(CHANGED)} of {len(first.links)} links change"
    notes = [f"windows of {WINDOW_S} s; dropped: packets from a full queue, from the swap to the window's end"]
    figures = {
        "repeats": args.repeats,
        "retransmissions_without": [window.retransmissions for window in quiet],
        "retransmissions_with": [window.retransmissions for window in swapped],
        "goodput_ratio": median(w.goodput_bps for w in swapped) / median(w.goodput_bps for w in quiet),
        "windows": [asdict(window) for window in found],
    }
    show([Table(title, columns, rows, notes)], figures, as_json=args.json, backend=backend)
    return 0


if __name__ == "__main__":
    run_program(main)
