"""`testbed cluster doctor`: what each host of a cluster can do, and the paths between each two of them.

A Ray actor on each host, the agent, answers with its host's facts and measures the paths. No packet of an emulated
network passes through an agent.
"""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations
from typing import Any

from testbed.emulation.host.budget import host_budget
from testbed.emulation.shaping import available_backends
from testbed.scaleout.node import MEASURE_PORT, connected, hosts_alive, read
from testbed.scaleout.split.probes import ClockSample

#: Readings of a host's clock; the one with the shortest round trip counts.
READINGS = 12

#: An agent that does not answer within this many seconds is on a host that is lost.
ANSWER_S = 90.0

#: Pings of a pair of hosts, 50 ms apart.
PINGS = 20
CAPACITY_S = 2

#: The MTUs that are tried, the largest first: jumbo frames; VXLAN around packets of 1,500 bytes; Ethernet.
MTUS = (9000, 1550, 1500)
#: The headers of IP and ICMP, in bytes.
PING_HEADERS = 28


@dataclass(frozen=True)
class HostFacts:
    """A host's facts, as its agent told them, and its clock against this machine's."""

    host: str
    address: str
    cores: int
    kernel: str
    #: The shaping backend, or None where none works.
    backend: str | None
    #: The measured budget in bits a second, or None where it was not measured.
    budget_bps: float | None
    #: How far the host's wall clock is ahead of this machine's, in seconds, and the largest possible error.
    clock_offset_s: float
    clock_bound_s: float


@dataclass(frozen=True)
class PairFacts:
    """The path from the first to the second of two hosts. A field is None where nothing came through."""

    hosts: tuple[str, str]
    round_trip_s: float | None
    jitter_s: float | None
    capacity_bps: float | None
    mtu: int | None


def examine() -> tuple[list[HostFacts], list[PairFacts]]:
    """Examine all live hosts, and each pair of them in turn. Raises CannotRun where no cluster is up."""
    with connected() as ray:
        addresses = dict(sorted(hosts_alive(ray).items()))
        # An agent ends with the last reference to it.
        agents = {
            host: ray.remote(num_cpus=0, resources={f"host:{host}": 0.001}, max_concurrency=2)(HostAgent).remote()
            for host in addresses
        }

        def answer(reference: Any) -> Any:
            return ray.get(reference, timeout=ANSWER_S)

        def clock_s(agent: Any) -> float:
            return float(answer(agent.clock_s.remote()))

        facts = []
        for host, agent in agents.items():
            found = answer(agent.facts.remote())
            offset_s, bound_s = clock_offset(partial(clock_s, agent))
            facts.append(HostFacts(host, addresses[host], **found, clock_offset_s=offset_s, clock_bound_s=bound_s))
        pairs = []
        for one, other in combinations(addresses, 2):
            answer(agents[other].listen.remote())
            measured = answer(agents[one].measure.remote(addresses[other]))
            pairs.append(PairFacts((one, other), **measured))
        return facts, pairs


def clock_offset(read_s: Callable[[], float], now_s: Callable[[], float] = time.time) -> tuple[float, float]:
    """Measure another clock by reading it READINGS times (Cristian 1989).

    Args:
        read_s: Asks the other clock, which takes some time, and returns its seconds.
        now_s: The clock to compare with.

    Returns:
        How far the other clock is ahead, and the largest possible error, both in seconds. The other clock was read at
        some moment between the question and the answer; the middle is wrong by half of that time at most.
    """
    samples = []
    for _ in range(READINGS):
        asked_s, other_s = now_s(), read_s()
        samples.append(ClockSample(asked_s, other_s, other_s, now_s()))
    best = min(samples, key=lambda sample: sample.round_trip_s)
    return best.offset_s, best.round_trip_s / 2


class HostAgent:
    """The Ray actor of one host: tells its facts and measures its paths."""

    def facts(self) -> dict[str, Any]:
        """Return the fields of HostFacts that are known on the host itself."""
        backend = next((name for name, wrong in available_backends().items() if wrong is None), None)
        budget = host_budget(backend) if backend else None
        return {
            "cores": os.cpu_count(),
            "kernel": platform.release(),
            "backend": backend,
            "budget_bps": budget.bits_per_second if budget else None,
        }

    def clock_s(self) -> float:
        """Return the host's time of day."""
        return time.time()

    def listen(self) -> None:
        """Start the server for one measurement of capacity. The server ends by itself when no client comes."""
        end = str(int(CAPACITY_S) + 15)
        command = ["timeout", end, "iperf3", "--server", "--one-off", "--bind", read().address]
        command += ["--port", str(MEASURE_PORT), "--forceflush"]
        self._server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        assert self._server.stdout is not None
        self._server.stdout.readline()  # iperf3 has bound its port when it prints the first line

    def measure(self, address: str) -> dict[str, float | None]:
        """Measure the path to another host, which listens.

        Returns:
            The least round trip and the jitter in seconds, the largest of MTUS that passes unfragmented, and the rate
            that TCP reached within CAPACITY_S.
        """
        least, jitter = round_trip(_output(["ping", "-n", "-q", "-c", str(PINGS + 1), "-i", "0.05", address]))
        passing = (mtu for mtu in MTUS if _passes(address, mtu))
        command = ["iperf3", "--client", address, "--port", str(MEASURE_PORT), "--time", str(CAPACITY_S), "--json"]
        found = json.loads(_output(command) or "{}")
        received = found.get("end", {}).get("sum_received", {}).get("bits_per_second")
        return {"round_trip_s": least, "jitter_s": jitter, "mtu": next(passing, None), "capacity_bps": received}


def round_trip(output: str) -> tuple[float | None, float | None]:
    """Return the least round trip and its mean deviation, in seconds, from the output of `ping -q`; or (None, None)."""
    found = re.search(r"= ([\d.]+)/[\d.]+/[\d.]+/([\d.]+) ", output)  # the unit is another word in other languages
    return (float(found[1]) / 1e3, float(found[2]) / 1e3) if found else (None, None)


def _passes(address: str, mtu: int) -> bool:
    whole = ["-M", "do", "-s", str(mtu - PING_HEADERS)]
    command = ["ping", "-nq", "-c", "2", "-i", "0.2", "-W", "2", *whole, address]
    return subprocess.run(command, capture_output=True).returncode == 0


def _output(command: Sequence[str]) -> str:
    return subprocess.run(command, capture_output=True, text=True, errors="replace").stdout
