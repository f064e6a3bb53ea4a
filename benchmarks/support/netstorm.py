"""NetStorm's evaluation: its network with drawn rates, the policies on it, and the claims about them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.support.networks import netstorm9
from testbed.planning import View, make_policy, simulate
from testbed.spec.topology import Link, Topology

#: NetStorm's network as published, without delays, and with delays of ours: 10 to 120 ms a round trip.
NETWORKS = ("netstorm9", "netstorm9-rtt")
TOPOLOGIES = Path(__file__).parents[2] / "topologies"

#: 2 to 15.5 Mbit/s a link, and 2 MB. At twice the rates nine containers and the shaper take 1.6 of two cores, and
#: packing took 1.13 × the simulator's time; at these rates 1.09 (another program ran beside it both times).
SCALE, PARAMETERS = 0.1, 500_000

#: Rounds in a simulation. As in the emulation, a member that finishes early begins to send the next round.
SIMULATED = 3

#: Policies and their options, in the order in which they are measured.
POLICIES: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "packing": ("packing", {}),
    "netstorm": ("netstorm", {}),
    "netstorm, 1 root": ("netstorm", {"roots": 1}),
    "netstorm, no auxiliary": ("netstorm", {"auxiliary": False}),
    "netstorm, unaware": ("netstorm", {}),
    "mst": ("mst", {}),
    "mlnet": ("mlnet", {}),
    "tsengine": ("tsengine", {}),
    "ring": ("ring", {}),
    "hierarchical": ("hierarchical", {}),
    "auto": ("auto", {}),
}
UNAWARE = "netstorm, unaware"

#: Stars by keys, and the ranks of their places among nine by the simulator.
KEYS = ("alexnet", "one", "overlapped")
RANKS = {"median": 4, "best": 0, "worst": 8}
STARS = {f"star {keys}, {rank}": (keys, rank) for rank in RANKS for keys in KEYS}


@dataclass(frozen=True, slots=True)
class Claim:
    """A claim that rounds of `policy` are at least `least` times as fast as rounds of `against`."""

    policy: str
    against: str
    least: float


CLAIMS = (
    Claim("netstorm", "star alexnet, median", 5.0),
    Claim("packing", "star alexnet, median", 7.0),
    Claim("netstorm", "star one, median", 6.0),
    Claim("packing", "star one, median", 9.5),
    Claim("netstorm", "mlnet", 1.0),
    Claim("netstorm", "tsengine", 1.0),
    Claim("netstorm", "mst", 1.0),
    Claim("packing", "netstorm", 1.4),
    Claim("netstorm", "netstorm, 1 root", 1.0),
    Claim("netstorm", "netstorm, no auxiliary", 1.0),
    Claim("netstorm", "netstorm, unaware", 1.0),
)


def drawn(topology: Topology, seed: int) -> Topology:
    """Return the network with one draw of NetStorm's rates, at SCALE."""
    draw = netstorm9(seed)

    def still(link: Link) -> Link:
        rate_bps = draw[link.source][link.target]["rate"]
        return replace(link, state=replace(link.state, rate_bps=rate_bps), trace=None)

    return replace(topology, links={name: still(link) for name, link in topology.links.items()}).scaled(SCALE)


def options(name: str, view: View) -> tuple[str, Mapping[str, Any]]:
    """Return the policy and options of a name of the benchmark. A star's server depends on the network in `view`."""
    if name in POLICIES:
        return POLICIES[name]
    keys, rank = STARS[name]
    seconds = served(keys, view)
    return "star", {"keys": keys, "server": sorted(seconds, key=seconds.__getitem__)[RANKS[rank]]}


def served(keys: str, view: View) -> dict[str, float]:
    """Return the simulated seconds of a star's round, by its server."""
    stars = {server: make_policy("star", {"keys": keys, "server": server}).plan(view) for server in view.names}
    return {server: simulate(plan, view, rounds=SIMULATED).seconds for server, plan in stars.items()}
