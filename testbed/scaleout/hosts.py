"""What the hosts of a cluster can do, and what lies between them: `testbed cluster doctor`."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import combinations
from typing import Any

from testbed.scaleout.ray_client import agent, connected, hosts_alive

#: Readings of a clock; the one with the shortest way there and back counts.
READINGS = 12

#: An agent that answers nothing for so long is on a host that is lost.
ANSWER_S = 90.0


@dataclass(frozen=True)
class Facts:
    """Of a host: what its agent said; how far its clock is ahead of this machine's, and how wrong that may be."""

    host: str
    address: str
    cores: int
    kernel: str
    backend: str | None
    budget_bps: float | None
    clock_offset_s: float
    clock_bound_s: float


@dataclass(frozen=True)
class Pair:
    """Of two hosts: what was measured from the first to the second; None where nothing came through."""

    hosts: tuple[str, str]
    round_trip_s: float | None
    jitter_s: float | None
    capacity_bps: float | None
    mtu: int | None


def examine() -> tuple[list[Facts], list[Pair]]:
    """All hosts that are alive, and each pair of them, one after another. CannotRun where no cluster is up."""
    with connected() as ray:
        addresses = dict(sorted(hosts_alive(ray).items()))
        agents = {host: agent(ray, host) for host in addresses}

        def answer(reference: Any) -> Any:
            return ray.get(reference, timeout=ANSWER_S)

        facts = []
        for host, own in agents.items():
            said = answer(own.facts.remote())
            offset_s, bound_s = clock_offset(partial(_clock_s, ray, own))
            facts.append(Facts(host, addresses[host], **said, clock_offset_s=offset_s, clock_bound_s=bound_s))
        pairs = []
        for one, other in combinations(addresses, 2):
            answer(agents[other].listen.remote())
            measured = answer(agents[one].measure.remote(addresses[other]))
            pairs.append(Pair((one, other), **measured))
        return facts, pairs


def _clock_s(ray: Any, own: Any) -> float:
    return float(ray.get(own.clock_s.remote(), timeout=ANSWER_S))


def clock_offset(read_s: Callable[[], float], now_s: Callable[[], float] = time.time) -> tuple[float, float]:
    """How far another clock is ahead of `now_s`, and the most that this may be wrong by, in seconds.

    It was read somewhere between asking and hearing; the middle is wrong by half of that time at most (Cristian 1989).
    """
    found = []
    for _ in range(READINGS):
        asked_s = now_s()
        other_s = read_s()
        heard_s = now_s()
        found.append(((heard_s - asked_s) / 2, other_s - (asked_s + heard_s) / 2))
    bound_s, offset_s = min(found)
    return offset_s, bound_s
