"""Measure what part of a long link one TCP flow fills, under BBR and reno, with fitted buffers and with the kernel's.

    sudo python -m benchmarks.transport

The link has 140 Mbit/s and a round trip of 218 ms. A row is a congestion control with one kind of buffers. Its figure
is the goodput of iperf3 with default settings in the workers' namespaces, as its server counts it over the seconds 5 to
25, divided by the ideal: 1448/1514 of the link's rate. A flow takes half a minute. The exit code is 1 where a flow with
fitted buffers misses 93 %.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks.support.options import Options
from benchmarks.support.program import run_program
from benchmarks.support.table import Table, progress, show
from testbed.emulation.testbed import Testbed
from testbed.link import MTU_FRAME_BYTES, TCP_PAYLOAD_BYTES
from testbed.spec.topology import Topology

RATE_BPS = 140e6
TOPOLOGY = {
    "name": "transport",
    "sites": {"a": {"workers": 1}, "b": {"workers": 1}},
    "links": [{"between": ["a", "b"], "rate": "140mbit", "delay": "109ms"}],
}
IDEAL_BPS = RATE_BPS * TCP_PAYLOAD_BYTES / MTU_FRAME_BYTES

CONGESTION_CONTROLS = ("bbr", "reno")
BEGIN_S, END_S = 5, 25
#: Of the ideal, with fitted buffers.
WANTED = 0.93
REPEATS, QUICK_REPEATS = 3, 1
#: iperf3's server listens within this.
LISTEN_S = 0.5


def goodput_bps(server: Mapping[str, Any]) -> float:
    """Return the goodput from the fifth second to the 25th, by the report of iperf3's server.

    Its intervals last about a second; those that begin in this time count.
    """
    sums = [interval["sum"] for interval in server["intervals"]]
    counted = [each for each in sums if BEGIN_S <= round(each["start"]) < END_S]
    return float(sum(each["bytes"] for each in counted) * 8 / sum(each["seconds"] for each in counted))


def measure(congestion: str, fitted: bool) -> tuple[float, str]:
    """Return the part of the ideal that one flow fills on a fresh network, and the shaping backend's name."""
    topology = Topology.from_value(TOPOLOGY, Path("transport.yaml"))
    with Testbed(topology, workers="namespaces", fit_transport=fitted) as testbed, ExitStack() as stack:
        network = testbed.network
        source, target = (network.container(worker.name) for worker in topology.workers)
        server = target.popen(["iperf3", "-s", "-1", "-J"], stdout=subprocess.PIPE)
        stack.callback(server.wait)
        stack.callback(server.kill)
        time.sleep(LISTEN_S)
        address = network.address(topology.workers[1])
        words = ["iperf3", "-c", address, "-t", str(END_S + 1), "-C", congestion]
        client = source.popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        said = client.communicate()[0]
        if client.returncode:
            raise RuntimeError(f"`{' '.join(words)}` failed: {said.decode().strip()}")
        return goodput_bps(json.loads(server.communicate()[0])) / IDEAL_BPS, network.shaper.name


def main(words: Sequence[str] | None = None) -> int:
    """Measure one connection at each delay, print the table, and return the exit code."""
    options = Options(__doc__)
    options.add_repeats(REPEATS, QUICK_REPEATS)
    asked = options.parse(words)
    found: dict[tuple[str, bool], list[float]] = {}
    backend = ""
    for congestion in CONGESTION_CONTROLS:
        for fitted in (False, True):
            for number in range(asked.repeats):
                progress(f"{congestion}, transport: {_setting(fitted)}, {number + 1} of {asked.repeats}")
                ratio, backend = measure(congestion, fitted)
                found.setdefault((congestion, fitted), []).append(ratio)
    rows = [
        (congestion, _setting(fitted), f"{statistics.median(ratios):.1%}", f"{min(ratios):.1%}", f"{max(ratios):.1%}")
        for (congestion, fitted), ratios in found.items()
    ]
    missed = [congestion for (congestion, fitted), ratios in found.items() if fitted and min(ratios) < WANTED]
    notes = [f"fitted wants {WANTED:.0%} at least: {'missed by ' + ', '.join(missed) if missed else 'all had it'}"]
    table = Table(
        "One flow, 140 Mbit/s, 218 ms: goodput of the ideal, seconds 5 to 25",
        ("congestion control", "transport", "median", "least", "most"),
        rows,
        notes,
    )
    figures = {
        "repeats": asked.repeats,
        "goodput_ratio": {f"{name}, {_setting(fitted)}": ratios for (name, fitted), ratios in found.items()},
        "wanted": WANTED,
    }
    show([table], figures, as_json=asked.json, backend=backend)
    return 1 if missed else 0


def _setting(fitted: bool) -> str:
    return "fitted" if fitted else "kernel"


if __name__ == "__main__":
    run_program(main)
