"""Measure what the userspace shaping core carries and costs, beside a relay between TAPs that does the same.

    sudo python -m benchmarks.shaping

A row is a load by the core or by the relay: 26 busy links with 8 Mbit/s of MTU-sized UDP each, then with 40 Mbit/s of
TCP each with segmentation offload, then one link at 1 Gbit/s. Round trips are measured over two idle links while the 26
others are busy both ways. A load takes ten seconds.

The peer (benchmarks/support/relay.c) is one process too, compiled alike and with the same real-time priority.
Super-packets cross it whole, and it serves as many a pass. It has a rate, a delay and a queue, but none of the core's
loss, jitter or changes. The exit code is 1 where the core misses a claim.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.support import flood
from benchmarks.support.options import Options
from benchmarks.support.pairs import Pair, pairs
from benchmarks.support.program import run_program
from benchmarks.support.table import Table, progress, show
from testbed.emulation.shaping.process import FLAGS
from testbed.emulation.shaping.userspace import UserspaceShaper
from testbed.link import MTU_FRAME_BYTES, TCP_PAYLOAD_BYTES, LinkState
from testbed.telemetry.host import CpuMeter

PAIRS = 13
DELAY_S = 0.02
UDP_BPS, TCP_BPS, FAST_BPS = 8e6, 40e6, 1e9

#: Claims. UDP: every link's rate, and the core's share of one processor. TCP: the median goodput, and that share.
UDP_RATE_ERROR, UDP_CORE = 0.02, 0.25
TCP_GOODPUT, TCP_CORE = 0.93, 0.60
FAST_GOODPUT = 0.93
RTT_MEDIAN_S, RTT_P99_S = 0.001, 0.003

#: The flood keeps the queue from running dry.
UDP_EXCESS = 1.03
WARM_UP_S = 2.0
PING_EVERY_S = 0.01
RELAY = Path(__file__).with_name("support") / "relay.c"


@dataclass(frozen=True, slots=True)
class Bed:
    """Pairs under shaping, and the process that shapes them."""

    name: str
    pairs: list[Pair]
    pid: int

    @property
    def realtime(self) -> bool:
        """True if the process runs before all ordinary processes."""
        return os.sched_getscheduler(self.pid) == os.SCHED_RR


@dataclass(slots=True)
class Busy:
    """The figures of a case. `shares` are parts of the ideal, one for each link.

    `core` is the process's share of one processor, as the kernel counts it: with the interrupts during its time, and so
    with most of the path of the packets that it sends, up to the receiver's socket. `interrupts` is the share of one
    processor that all soft interrupts of the host take; `host` is the busy share of all processors.
    """

    shares: list[float] = field(default_factory=list)
    core: float = 0.0
    interrupts: float = 0.0
    host: float = 0.0
    rtt_ms: list[float] = field(default_factory=list)
    realtime: bool = False

    def rtt_error_ms(self, part: float) -> float:
        """Return by how many milliseconds the quantile `part` of the round trips exceeds the requested round trip."""
        asked = 2 * DELAY_S * 1e3
        return sorted(self.rtt_ms)[int(part * (len(self.rtt_ms) - 1))] - asked if self.rtt_ms else float("nan")


Beds = Callable[[int, LinkState], AbstractContextManager[Bed]]


@contextmanager
def core(count: int, state: LinkState) -> Iterator[Bed]:
    """Shape pairs by the project's core."""
    with pairs(count) as found, UserspaceShaper() as shaper:
        shaper.attach({port: state for pair in found for port in pair.ports})
        yield Bed("core", found, shaper.pid)


@contextmanager
def relay(count: int, state: LinkState) -> Iterator[Bed]:
    """Shape pairs by the peer, a relay between TAPs."""
    binary = RELAY.parents[1] / "build" / "testbed-relay"
    binary.parent.mkdir(exist_ok=True)
    subprocess.run(["cc", *FLAGS, "-o", str(binary), str(RELAY), "-lm"], check=True)
    running: list[subprocess.Popen[str]] = []

    def join(found: list[Pair]) -> None:
        ends = [str(word) for p in found for word in (p.netns("left"), "right", p.netns("right"), "left")]
        words = [str(binary), repr(state.rate_bps / 8), repr(state.delay_s), str(state.queue_bytes), *ends]
        running.append(subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
        if running[0].stdout is None or running[0].stdout.readline() != "ready\n":
            raise RuntimeError("the relay does not start: it needs /dev/net/tun")

    try:
        with pairs(count, join) as found:
            yield Bed("relay", found, running[0].pid)
    finally:
        for process in running:
            process.kill()
            process.wait()


def udp(beds: Beds, seconds: float) -> Busy:
    """Measure 26 links of 8 Mbit/s kept full by full frames; two more are pinged over."""
    with beds(PAIRS + 1, LinkState(UDP_BPS, DELAY_S)) as bed:
        busy, idle = bed.pairs[:-1], bed.pairs[-1]
        streams = [
            flood.Stream(pair.netns(near), pair.address(far), UDP_EXCESS * UDP_BPS)
            for pair in busy
            for near, far in (("near", "far"), ("far", "near"))
        ]
        sinks = [flood.receiver(pair.netns(host)) for pair in busy for host in ("near", "far")]
        sending = flood.start(streams, seconds + 60)
        try:
            time.sleep(WARM_UP_S)
            found = Busy()
            before = _received(busy)
            with _metered(bed, found):
                began = time.monotonic()
                found.rtt_ms = _pings(idle, seconds)
                elapsed = time.monotonic() - began
                after = _received(busy)
            found.shares = [(b - a) * 8 / elapsed / UDP_BPS for a, b in zip(before, after, strict=True)]
            return found
        finally:
            sending.kill()
            sending.wait()
            for sink in sinks:
                sink.close()


def tcp(beds: Beds, seconds: float) -> Busy:
    """Measure 26 links of 40 Mbit/s, one TCP flow each; two more are pinged over."""
    with beds(PAIRS + 1, LinkState(TCP_BPS, DELAY_S)) as bed:
        busy = [(pair, *way) for pair in bed.pairs[:-1] for way in (("near", "far"), ("far", "near"))]
        return _flows(bed, busy, TCP_BPS, seconds, pinged=bed.pairs[-1])


def fast(beds: Beds, seconds: float) -> Busy:
    """Measure one link of 1 Gbit/s, with one TCP flow."""
    with beds(1, LinkState(FAST_BPS, DELAY_S)) as bed:
        return _flows(bed, [(bed.pairs[0], "near", "far")], FAST_BPS, seconds)


def _flows(
    bed: Bed, ways: Sequence[tuple[Pair, str, str]], rate_bps: float, seconds: float, pinged: Pair | None = None
) -> Busy:
    servers = [_quiet(pair.command(far, "iperf3", "-s", "-1")) for pair, _, far in ways]
    try:
        for pair, _, far in ways:
            _wait_for_port(pair, far)
        asked = ["-t", str(int(seconds + WARM_UP_S + 1)), "-O", str(int(WARM_UP_S)), "-J"]
        clients = [
            subprocess.Popen(
                pair.command(near, "iperf3", "-c", pair.address(far), *asked), stdout=subprocess.PIPE, text=True
            )
            for pair, near, far in ways
        ]
        found = Busy()
        time.sleep(WARM_UP_S + 0.5)
        with _metered(bed, found):
            if pinged is not None:
                found.rtt_ms = _pings(pinged, seconds)
            else:
                time.sleep(seconds)
        ideal = rate_bps * TCP_PAYLOAD_BYTES / MTU_FRAME_BYTES
        reports = [json.loads(client.communicate()[0]) for client in clients]
        found.shares = [report["end"]["sum_received"]["bits_per_second"] / ideal for report in reports]
        return found
    finally:
        for server in servers:
            server.kill()
            server.wait()


@contextmanager
def _metered(bed: Bed, found: Busy) -> Iterator[None]:
    host, used, soft, began = CpuMeter(), _cpu_seconds(bed.pid), _interrupt_seconds(), time.monotonic()
    yield
    found.interrupts = (_interrupt_seconds() - soft) / (time.monotonic() - began)
    found.realtime = bed.realtime
    found.core = (_cpu_seconds(bed.pid) - used) / (time.monotonic() - began)
    found.host = host.read()


def _cpu_seconds(pid: int) -> float:
    """Return the seconds of a processor that a process has used so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _interrupt_seconds() -> float:
    """Return the seconds that all processors have spent in soft interrupts."""
    return int(Path("/proc/stat").read_text().split()[7]) / os.sysconf("SC_CLK_TCK")


def _received(busy: Sequence[Pair]) -> list[int]:
    """Return the bytes of frames that have arrived at each host, by the kernel's count."""
    found = []
    for pair in busy:
        for host, interface in (("near", "left"), ("far", "right")):
            text = Path(f"/proc/{pair.holders[host]}/net/dev").read_text()
            found.append(int(text.split(f"{interface}:")[1].split()[0]))
    return found


def _pings(pair: Pair, seconds: float) -> list[float]:
    """Return round trips in ms, without the first ones, which carry address resolution."""
    count = int(seconds / PING_EVERY_S)
    words = ["ping", "-n", "-i", str(PING_EVERY_S), "-c", str(count), pair.address("far")]
    done = subprocess.run(pair.command("near", *words), capture_output=True, text=True, check=False)
    return [float(text) for text in re.findall(r"time=([\d.]+)", done.stdout)][2:]


def _wait_for_port(pair: Pair, host: str) -> None:
    while True:
        listening = subprocess.run(pair.command(host, "ss", "-Hltn"), capture_output=True, text=True, check=True)
        if ":5201" in listening.stdout:
            return
        time.sleep(0.02)


def _quiet(command: Sequence[str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def missed(cases: Mapping[str, Mapping[str, Busy]]) -> list[str]:
    """Return the loads for which the core misses a claim."""
    udp, tcp, fast = (cases[name]["core"] for name in ("udp", "tcp", "fast"))
    held = {
        "udp": max(abs(share - 1) for share in udp.shares) <= UDP_RATE_ERROR and udp.core <= UDP_CORE,
        "tcp": median(tcp.shares) >= TCP_GOODPUT and tcp.core <= TCP_CORE,
        "fast": median(fast.shares) >= FAST_GOODPUT,
        "round trips": all(
            one.rtt_error_ms(part) <= most_s * 1e3
            for one in (udp, tcp)
            for part, most_s in ((0.5, RTT_MEDIAN_S), (0.99, RTT_P99_S))
        ),
    }
    return [name for name, holds in held.items() if not holds]


def main() -> int:
    """Measure the shaping core beside a relay in C, and print the tables. Returns 1 where a claim is missed, else 0."""
    asked = Options(__doc__).parse()
    seconds = 4.0 if asked.quick else 10.0
    cases: dict[str, dict[str, Busy]] = {}
    for name, case in (("udp", udp), ("tcp", tcp), ("fast", fast)):
        for beds in (core, relay):
            progress(f"{name}, {beds.__name__}, {seconds:g} s")
            cases.setdefault(name, {})[beds.__name__] = case(beds, seconds)
    figures: dict[str, Any] = {
        "repeats": 1,
        "cases": {name: {bed: _figures(found) for bed, found in both.items()} for name, both in cases.items()},
        "core_to_relay_cpu": {name: both["core"].core / both["relay"].core for name, both in cases.items()},
    }
    show([_table(cases)], figures, as_json=asked.json, backend="userspace")
    return 1 if missed(cases) else 0


def _figures(found: Busy) -> dict[str, Any]:
    values = asdict(found)
    del values["rtt_ms"]
    if found.rtt_ms:
        values["rtt_error_ms"] = {"p50": found.rtt_error_ms(0.5), "p99": found.rtt_error_ms(0.99)}
    return values


def _table(cases: dict[str, dict[str, Busy]]) -> Table:
    titles = {
        "udp": f"26 links, {UDP_BPS / 1e6:g} Mbit/s UDP, full frames",
        "tcp": f"26 links, {TCP_BPS / 1e6:g} Mbit/s TCP, offload",
        "fast": f"one link, {FAST_BPS / 1e9:g} Gbit/s TCP",
    }
    rows = []
    for name, both in cases.items():
        for bed, found in both.items():
            rtt = [f"{found.rtt_error_ms(part):+.2f}" for part in (0.5, 0.99)] if found.rtt_ms else ["", ""]
            shares = [f"{100 * share:.1f}" for share in (min(found.shares), median(found.shares), max(found.shares))]
            used = [f"{share:.0%}" for share in (found.core, found.interrupts, found.host)]
            rows.append((titles[name], bed, *shares, *used, *rtt))
    bars = (
        f"bars: UDP each link within {UDP_RATE_ERROR:.0%} on {UDP_CORE:.0%} of a processor; TCP a median of "
        f"{TCP_GOODPUT:.0%} on {TCP_CORE:.0%}; 1 Gbit/s {FAST_GOODPUT:.0%}; round trips +{RTT_MEDIAN_S * 1e3:g} ms at "
        f"the median, +{RTT_P99_S * 1e3:g} ms at the 99th percentile"
    )
    columns = ("load", "by", "least %", "median %", "most %", "process", "interrupts", "host", "RTT p50 ms", "p99 ms")
    return Table("Rate or goodput of the ideal, and what it takes", columns, rows, [bars])


if __name__ == "__main__":
    run_program(main)
