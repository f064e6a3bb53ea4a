"""A testbed in figures, as JSON has them: hosts with addresses, links with the state in force and their counters."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any

from testbed.emulation.network import Network
from testbed.emulation.node import NamespaceNode
from testbed.emulation.shaping import LinkCounters
from testbed.emulation.testbed import Testbed
from testbed.link import LinkState
from testbed.spec.topology import Topology

#: How many of a link's last replay ticks the lateness is of: a minute at 100 ms. A network may stay up for weeks.
LAST_TICKS = 600


def status(testbed: Testbed) -> dict[str, Any]:
    """What it is now. Times in seconds."""
    network, replay, topology = testbed.network, testbed.replay, testbed.network.topology
    counters = network.shaper.counters()
    states = network.links_in_force.states()
    replayed = {name for name, link in topology.links.items() if link.trace is not None}
    return {
        "name": testbed.name,
        "topology": topology.name,
        "file": str(topology.file),
        "backend": network.shaper.name,
        "switch": network.switch,
        "transport": network.transport.record(),
        "pid": os.getpid(),
        "failure": network.shaper.failure() or (str(replay.failure) if replay.failure else None),
        "replay": {
            "elapsed_s": round(replay.elapsed_s, 3),
            "links": len(replayed),
            "late_ms_p99": _p99_ms(network.links_in_force.lateness(LAST_TICKS)),
        },
        "hosts": _hosts(network, topology),
        "links": {
            name: {**state_values(state), **_counts(counters[name]), "replayed": name in replayed}
            for name, state in states.items()
        },
    }


def _hosts(network: Network, topology: Topology) -> dict[str, dict[str, Any]]:
    workers = {
        worker.name: _host("worker", worker.site, network.address(worker), network.container(worker.name))
        for worker in topology.workers
    }
    routers = {
        f"{site}-r": _host("router", site, str(network.addressing.router(site).ip), network.router(site))
        for site in topology.sites
    }
    return workers | routers


def state_values(state: LinkState) -> dict[str, Any]:
    """A state as JSON has it, its queue as the bytes that may wait at this rate and delay."""
    return {
        "rate_bps": state.rate_bps,
        "delay_s": state.delay_s,
        "jitter_s": state.jitter_s,
        "loss": state.loss,
        "bursts": asdict(state.bursts) if state.bursts else None,
        "reorder": state.reorder,
        "up": state.up,
        "queue_bytes": state.queue_bytes,
    }


def _host(kind: str, site: str, address: str, node: NamespaceNode) -> dict[str, Any]:
    """`pid` is what holds its namespace: of a worker, its container's first process; of a router, a thread of ours."""
    held = {"pid": node.pid, "start_ticks": node.start_ticks, "running": node.held}
    return {"kind": kind, "site": site, "address": address, **held}


def _counts(counters: LinkCounters) -> dict[str, int]:
    return {
        "packets": counters.packets,
        "bytes": counters.bytes,
        "dropped_queue": counters.dropped_queue,
        "dropped_loss": counters.dropped_loss,
        "backlog_bytes": counters.backlog_bytes,
    }


def _p99_ms(lateness: Mapping[str, Iterable[float]]) -> float | None:
    """Over all ticks of all links that are remembered; None where nothing is replayed."""
    late = sorted(seconds for ticks in lateness.values() for seconds in ticks)
    return round(late[int(0.99 * (len(late) - 1))] * 1e3, 3) if late else None
