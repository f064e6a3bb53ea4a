"""The state of a testbed as the API reports it: hosts with addresses, links with the state in force and their counters.

Any thread may call these functions, also during a network swap: hosts and links that are being added or removed are
left out.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from testbed.api.models import NetworkStatus
from testbed.emulation.links.links import RequestedState
from testbed.emulation.shaping import LinkCounters, ShapingError
from testbed.emulation.testbed import Testbed
from testbed.link import LinkState, link_ends
from testbed.spec.event import LinkChange
from testbed.spec.topology import Topology
from testbed.trace.text import as_line

if TYPE_CHECKING:  # importing it needs Mininet, which `simulate` and `report` do without
    from testbed.emulation.network.network import Network
    from testbed.emulation.network.node import NamespaceNode

#: The counters of a link that are reported.
COUNTED = ("packets", "bytes", "dropped_queue", "dropped_loss", "backlog_bytes")

#: The number of hexadecimal digits of a link's tag, a hash of its requested state.
TAG_DIGITS = 16


def overview(testbed: Testbed, kind: str) -> dict[str, Any]:
    """Return the network's name, topology, backend, failure and replay progress. Times are in seconds."""
    network, replay, topology = testbed.network, testbed.replay, testbed.network.topology
    return {
        "kind": kind,
        "name": testbed.name,
        "topology": topology.name,
        "file": as_line(str(topology.file)),
        "backend": network.shaper.name,
        "switch": network.switch,
        "transport": network.transport.record(),
        "pid": os.getpid(),
        "failure": network.failure() or (str(replay.failure) if replay.failure else None),
        "replay": {
            "elapsed_s": round(replay.elapsed_s, 3),
            "links": sum(link.trace is not None for link in topology.links.values()),
            "late_ms_p99": None,
            "paused": replay.paused,
        },
    }


def sections(testbed: Testbed, kind: str) -> dict[str, dict[str, Any]]:
    """Return the network's state, an entry for each section of the API's state."""
    network, topology = testbed.network, testbed.network.topology
    links = network.links_in_force
    try:
        counters = network.shaper.counters()
    except ShapingError:  # the shaper has ended, and the overview says how
        counters = {name: LinkCounters() for name in links.states()}
    states, requested = links.states(), links.requested()
    return {
        "network": overview(testbed, kind),
        "sites": _sites(topology),
        "hosts": _hosts(network, topology),
        "links": {name: _link(name, states[name], requested[name]) for name in states if name in requested},
        "traffic": {name: _counts(counters[name]) for name in states if name in counters},
    }


def status(testbed: Testbed, kind: str) -> NetworkStatus:
    """Return the network's overview, its hosts and its links."""
    found = sections(testbed, kind)
    lateness = testbed.network.links_in_force.lateness(newest=True)  # also of removed links, for a run's verdict
    replayed = (name for name, link in found["links"].items() if link["replayed"])
    found["network"]["replay"]["late_ms_p99"] = _p99_ms(lateness.get(name, ()) for name in replayed)
    return NetworkStatus(
        **found["network"],
        hosts=found["hosts"],
        links={
            name: found["links"][name] | found["traffic"][name] for name in found["links"].keys() & found["traffic"]
        },
    )


def metrics(network: NetworkStatus, run: Mapping[str, Any] | None = None) -> bytes:
    """Return the status of a network, and of the run on it, in the text format of Prometheus.

    `run` is the status of the run's controller: empty before its first status, and None without a controller.
    """
    from testbed.telemetry.prometheus import metrics  # loaded at the first request

    return metrics(run or None, network.model_dump())


def tag_of(requested: RequestedState) -> str:
    """Return the tag of a link's requested state. Traces do not change it."""
    value = [_values(requested.link.state), requested.link.trace is not None, _changed(requested), requested.up]
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:TAG_DIGITS]


def _link(name: str, state: LinkState, requested: RequestedState) -> dict[str, Any]:
    source, target = link_ends(name)
    return {
        "source": source,
        "target": target,
        **_values(state),
        "bursts": asdict(state.bursts) if state.bursts else None,
        "reorder": state.reorder,
        "up": state.up,
        "queue_bytes": state.queue_bytes,  # its size at this rate and delay
        "discipline": state.queue.discipline_record(),
        "replayed": requested.link.trace is not None,
        "declared": _values(requested.link.state),
        "declared_traffic": requested.link.traffic_record(),
        "changed": _changed(requested),
        "tag": tag_of(requested),
    }


def _values(state: LinkState) -> dict[str, float | None]:
    return {"rate_bps": state.rate_bps, "delay_s": state.delay_s, "jitter_s": state.jitter_s, "loss": state.loss}


def _changed(requested: RequestedState) -> dict[str, float | None]:
    return (requested.change or LinkChange(link=requested.link.name)).values()


def _sites(topology: Topology) -> dict[str, dict[str, Any]]:
    workers: dict[str, list[str]] = {name: [] for name in topology.sites}
    for worker in topology.workers:
        workers[worker.site].append(worker.name)
    return {
        name: {"label": site.label, "position": site.position and list(site.position), "workers": workers[name]}
        for name, site in topology.sites.items()
    }


def _hosts(network: Network, topology: Topology) -> dict[str, dict[str, Any]]:
    there: Mapping[str, NamespaceNode] = dict(network.nameToNode)
    workers = {
        worker.name: _host("worker", worker.site, network.address(worker), there[worker.name])
        for worker in topology.workers
        if worker.name in there
    }
    routers = {
        f"{site}-r": _host("router", site, str(network.addressing.router(site).ip), there[f"{site}-r"])
        for site in topology.sites
        if f"{site}-r" in there
    }
    return workers | routers


def _host(kind: str, site: str, address: str, node: NamespaceNode) -> dict[str, Any]:
    """Return a host's entry. Its `pid` holds the namespace: a worker's first process, or a thread of ours."""
    held = {"pid": node.holder.pid, "start_ticks": node.holder.start_ticks, "running": node.held}
    return {"kind": kind, "site": site, "address": address, **held}


def _counts(counters: LinkCounters) -> dict[str, int]:
    return {name: getattr(counters, name) for name in COUNTED}


def _p99_ms(lateness: Iterable[Iterable[float]]) -> float | None:
    """Return the 99th percentile over the newest ticks of the latest link in ms; None if there are none."""
    late = [sorted(ticks) for ticks in lateness]
    worst = max((ticks[int(0.99 * (len(ticks) - 1))] for ticks in late if ticks), default=None)
    return None if worst is None else round(worst * 1e3, 3)
