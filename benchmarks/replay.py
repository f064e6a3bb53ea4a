"""Measure how exactly traces are replayed: packets beside a packet-delivery file, and rows beside the clock.

    sudo python -m benchmarks.replay [--file FILE] [--backend NAME]

A delivery file is replayed for a minute on a link that a flood of UDP keeps full. The packets that arrive in each
second, by the kernel's own time of arrival, are compared with those that the file lets through in that second. Claims:
within 3 % on average, and a correlation of 0.99 or more. Without `--file` one is generated, with a wandering rate and
outages, since Mahimahi's files may not be copied here.

Then a small packet each 97 ms goes over the link alone. Its wait is compared with the wait until the file's next
opportunity, and with its wait where the same file is replayed as rates, as the netem backend does it. These are
figures without a claim.

Then rows are put in force by the real shaper on 26 links each 100 ms, on 500 each second and on one each 10 ms, on a
quiet host and beside a process that keeps a processor busy. A row is a case. A tick's lateness is the time from its
moment until its rows are in force; the claim is 5 ms at the 99th percentile. The exit code is 1 where a claim is
missed.
"""

from __future__ import annotations

import random
import struct
import time
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, replace
from itertools import count, product
from pathlib import Path
from socket import SOL_SOCKET, socket
from statistics import correlation, mean, median
from threading import Event, Thread

from numpy import percentile

from benchmarks.support import flood
from benchmarks.support.options import Options
from benchmarks.support.pairs import Pair, batch, namespaces, pairs
from benchmarks.support.program import run_program
from benchmarks.support.table import Table, progress, show
from testbed.emulation.links.links import Links
from testbed.emulation.links.probe import udp_socket
from testbed.emulation.links.replay import Replay
from testbed.emulation.network.namespace import inside
from testbed.emulation.shaping import Port, open_shaper
from testbed.link import MTU_FRAME_BYTES, LinkState, Opportunities, Queue
from testbed.spec.topology import Link
from testbed.trace.generate import OrnsteinUhlenbeck, Outages
from testbed.trace.mahimahi import DeliverySchedule, schedule_of
from testbed.trace.read import read_trace
from testbed.trace.trace import Row, Trace, TraceError

#: Claims: mean error and correlation of one-second windows, and a tick's lateness.
MEAN_ERROR = 0.03
CORRELATION = 0.99
LATE_S = 0.005

#: The flood runs this much faster than the fastest 100 ms of the schedule, and enough waits to bridge its bursts.
EXCESS = 1.25
PEAK_S = 0.1
WAITING = Queue(400, "packets")
DELAY_S = 0.02
#: An opportunity on the edge of a window belongs to the one that begins; its packet may come a grain early.
EDGE_S = 0.0005
SO_TIMESTAMPNS = 35

#: A light load: the bytes of a datagram, and the seconds between two, which are out of step with any row.
LIGHT_BYTES, LIGHT_S = 64, 0.097

#: Replay: (links, seconds between rows).
CLOCKS = ((26, 0.1), (500, 1.0), (1, 0.01))
LINKS_A_SITE = 10


@dataclass(frozen=True, slots=True)
class Delivered:
    """One-second windows, in Mbit/s of frames: asked by the schedule, and arrived."""

    source: str
    backend: str
    asked_mbps: list[float]
    arrived_mbps: list[float]

    @property
    def mean_error(self) -> float:
        """The sum of |arrived - asked| over the sum asked."""
        off = sum(abs(a - b) for a, b in zip(self.arrived_mbps, self.asked_mbps, strict=True))
        return off / sum(self.asked_mbps)

    @property
    def mean_window_error(self) -> float:
        """The mean relative error of the windows in which anything was asked."""
        windows = [(a, b) for a, b in zip(self.arrived_mbps, self.asked_mbps, strict=True) if b > 0]
        return mean(abs(a / b - 1) for a, b in windows)

    @property
    def correlation(self) -> float:
        """The correlation between the asked and the arrived rates."""
        return correlation(self.asked_mbps, self.arrived_mbps)

    @property
    def held(self) -> bool:
        """True if the claims on the mean error and the correlation hold."""
        return self.mean_error <= MEAN_ERROR and self.correlation >= CORRELATION


@dataclass(frozen=True, slots=True)
class Lateness:
    """The lateness of all ticks of all links, in ms."""

    links: int
    step_s: float
    busy: bool
    ticks: int
    p50_ms: float
    p99_ms: float
    worst_ms: float


@dataclass(frozen=True, slots=True)
class Waits:
    """The waits of packets that are alone on the link, in ms.

    They are measured, computed from the file, and measured where the file is replayed as rates.
    """

    measured_ms: list[float]
    file_ms: list[float]
    rates_ms: list[float]


def delivery_trace(file: Path | None, seconds: int) -> Trace:
    """Return the trace of a packet-delivery file, or a generated one.

    Raises:
        TraceError: The file has another form.
    """
    trace = read_trace(file).trace if file else generated(seconds).resampled().trace
    if trace.opportunities is None:
        rule = "it is no packet-delivery file, which has a line for each packet; `testbed trace convert` makes one"
        raise TraceError(f"{file}: {rule}", rule="no-deliveries", file=file)
    return trace


def light_load(trace: Trace, seconds: int, backend: str = "auto") -> Waits:
    """Replay a delivery trace packet by packet, then as rates, beneath packets that are alone on the link."""
    assert trace.opportunities is not None
    measured, by_file = _waits(trace, trace.opportunities, seconds, backend)
    as_rates, _ = _waits(replace(trace, opportunities=None), trace.opportunities, seconds, backend)
    return Waits(measured, by_file, as_rates)


def _waits(trace: Trace, opportunities: Opportunities, seconds: int, backend: str) -> tuple[list[float], list[float]]:
    """Return the packets' waits in ms, and their waits until the next opportunity."""
    moments, period = opportunities.moments_ms, opportunities.moments_ms[-1]
    link = Link("near0", "far0", LinkState(64e3, DELAY_S, queue=WAITING), trace)
    waited, expected = [], []
    with _replayed(link, backend) as (pair, replay, _):
        sender = inside(pair.netns("near"), udp_socket)
        with sender, flood.receiver(pair.netns("far")) as into:
            into.settimeout(60)
            for _ in range(3):  # the first ones wait for addresses to be found
                sender.sendto(bytes(LIGHT_BYTES), (pair.address("far"), flood.PORT))
                into.recv(LIGHT_BYTES)
            replay.start([link])
            began = replay.began_s or 0.0
            while (sent := time.monotonic()) < began + seconds:
                sender.sendto(bytes(LIGHT_BYTES), (pair.address("far"), flood.PORT))
                into.recv(LIGHT_BYTES)
                waited.append((time.monotonic() - sent - DELAY_S) * 1e3)
                _, at_ms = divmod((sent - began) * 1e3, period)
                expected.append(moments[bisect_left(moments, at_ms)] - at_ms)
                time.sleep(max(0.0, sent + LIGHT_S - time.monotonic()))
            replay.stop()
    return waited, expected


def measure(file: Path | None = None, seconds: int = 60, backend: str = "auto") -> Delivered:
    """Replay a delivery file, or a generated one, over one link between two hosts that is kept full."""
    trace = delivery_trace(file, seconds)
    assert trace.opportunities is not None
    link = Link("near0", "far0", LinkState(64e3, DELAY_S, queue=WAITING), trace)
    with _replayed(link, backend) as (pair, replay, used):
        stream = flood.Stream(pair.netns("near"), pair.address("far"), EXCESS * fastest(trace.opportunities))
        with flood.receiver(pair.netns("far")) as into, flood.start([stream], seconds + 4) as sending:
            time.sleep(1)  # until it sends, and the queue is full
            replay.start([link])
            began = replay.began_s or 0.0
            arrivals = list(_arrivals(into, began + DELAY_S - EDGE_S, seconds))
            replay.stop()
            sending.kill()
        per_second = MTU_FRAME_BYTES * 8 / 1e6
        return Delivered(
            source=file.name if file else "generated",
            backend=used,
            asked_mbps=[n * trace.opportunities.bytes_each * 8 / 1e6 for n in windows(trace.opportunities, seconds)],
            arrived_mbps=[n * per_second for n in arrivals],
        )


@contextmanager
def _replayed(link: Link, backend: str) -> Iterator[tuple[Pair, Replay, str]]:
    """Yield two hosts with this link one way, the replay of its trace, not yet started, and the backend's name."""
    with pairs(1) as (pair,), open_shaper(backend) as shaper:  # type: ignore[arg-type]
        links = Links(shaper, lambda *_: None)
        shaper.attach(dict(zip(pair.ports, (links.add(link), LinkState(100e6, DELAY_S)), strict=True)))
        yield pair, Replay(links), shaper.name


def generated(seconds: int) -> DeliverySchedule:
    """Generate a link such as a phone's in a moving car: its rate wanders, and breaks off at times."""
    wander = OrnsteinUhlenbeck(6e6, 0.6, 4.0, 0.1, float(seconds), seed=1).trace()
    breaks = Outages(1e6, 12.0, 1.0, float(seconds), seed=1).trace()
    rows = (Row(row.time_s, row.rate_bps, loss=at.loss) for row in wander.rows if (at := breaks.at(row.time_s)))
    return schedule_of(Trace(tuple(rows)))


def fastest(opportunities: Opportunities) -> float:
    """Return the highest rate over PEAK_S, in bit/s."""
    moments = opportunities.moments_ms
    most = max(i - bisect_left(moments, moment - PEAK_S * 1e3) for i, moment in enumerate(moments, 1))
    return most * opportunities.bytes_each * 8 / PEAK_S


def windows(opportunities: Opportunities, seconds: int) -> list[int]:
    """Return the opportunities in each second from the start, for a schedule that loops."""
    moments, period = opportunities.moments_ms, opportunities.moments_ms[-1]

    def before(ms: int) -> int:
        laps, rest = divmod(ms - 1, period)
        return laps * len(moments) + bisect_right(moments, rest) if ms else 0

    return [before((second + 1) * 1000) - before(second * 1000) for second in range(seconds)]


def _arrivals(into: socket, begin_s: float, seconds: int) -> Iterator[int]:
    """Yield the datagrams in each second from `begin_s` (monotonic clock) on, by the kernel's time of their arrival."""
    into.setsockopt(SOL_SOCKET, SO_TIMESTAMPNS, 1)
    into.settimeout(0.5)
    offset = time.time() - time.monotonic()
    counts = [0] * seconds
    while time.monotonic() < begin_s + seconds + 0.5:
        try:
            _, ((_, _, stamp),), _, _ = into.recvmsg(1, 64)
        except TimeoutError:
            continue
        whole, nanoseconds = struct.unpack("qq", stamp)
        second = int(whole + nanoseconds * 1e-9 - offset - begin_s) if whole - offset >= begin_s - 1 else -1
        if whole + nanoseconds * 1e-9 - offset >= begin_s and second < seconds:
            counts[second] += 1
    yield from counts


def lateness(links_count: int, step_s: float, seconds: float, busy: bool, backend: str = "auto") -> Lateness:
    """Replay a new rate on each of `links_count` links every `step_s`, on a quiet host or beside a busy process."""
    draw = random.Random(links_count)
    with ports(links_count) as found, open_shaper(backend) as shaper:  # type: ignore[arg-type]
        links = Links(shaper, lambda *_: None)
        steps = int(seconds / step_s) + 1
        replayed = []
        for port in found:
            rows = tuple(Row(round(i * step_s, 9), draw.uniform(5e6, 50e6)) for i in range(steps))
            source, target = port.link.split("->")
            replayed.append(Link(source, target, LinkState(50e6, 0.02), Trace(rows, "hold")))
        shaper.attach({port: links.add(link) for port, link in zip(found, replayed, strict=True)})
        replay = Replay(links)
        with burning() if busy else nullcontext():
            replay.start(replayed)
            time.sleep(seconds + step_s / 2)
        replay.stop()
        if replay.failure:
            raise replay.failure
    late = sorted(late * 1e3 for ticks in links.lateness().values() for late in ticks)
    return Lateness(links_count, step_s, busy, len(late), median(late), late[int(0.99 * (len(late) - 1))], late[-1])


@contextmanager
def burning() -> Iterator[None]:
    """Run a process that keeps a processor busy, and a thread that keeps this interpreter busy."""
    over = Event()
    thread = Thread(target=lambda: all(not over.is_set() for _ in count()))
    with flood.burner():
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()


@contextmanager
def ports(count: int) -> Iterator[list[Port]]:
    """Yield `count` ports to shape, ten in each namespace."""
    with namespaces(-(-count // LINKS_A_SITE)) as sites:
        found: list[Port] = []
        for number, site in enumerate(sites):
            here = range(number * LINKS_A_SITE, min((number + 1) * LINKS_A_SITE, count))
            lines = [f"link add p{i} up type veth peer name q{i}" for i in here]
            batch(["nsenter", "-t", str(site.pid), "-n", "ip", "-batch", "-"], lines)
            found += [Port(f"s{i}->t{i}", Path(f"/proc/{site.pid}/ns/net"), f"p{i}") for i in here]
        yield found


def main() -> int:
    """Measure a replayed trace and print the tables. Returns 1 where a claim is missed, else 0."""
    parser = Options(__doc__)
    parser.add_argument("--file", type=Path, help="a packet-delivery file; a generated one without")
    parser.add_argument("--backend", default="auto", choices=["auto", "netem", "userspace"])
    asked = parser.parse()
    seconds, ticking = (15, 5.0) if asked.quick else (60, 20.0)
    progress(f"{asked.file or 'a generated file'}, {seconds} s")
    delivered = measure(asked.file, seconds, asked.backend)
    progress(f"packets that are alone on the link, {seconds} s")
    waits = light_load(delivery_trace(asked.file, seconds), seconds, asked.backend)
    clocks = []
    for (links, step_s), busy in product(CLOCKS, (False, True)):
        progress(
            f"{links} links, a row each {step_s:g} s, {ticking:g} s{', beside what keeps a processor busy' * busy}"
        )
        clocks.append(lateness(links, step_s, ticking, busy, asked.backend))
    figures = {
        "repeats": 1,
        "delivery": {
            **asdict(delivered),
            "mean_error": delivered.mean_error,
            "mean_window_error": delivered.mean_window_error,
            "correlation": delivered.correlation,
            "bars": {"mean_error": MEAN_ERROR, "correlation": CORRELATION},
        },
        "light_load": asdict(waits),
        "clock": {"late_ms_bar": LATE_S * 1e3, "cases": [asdict(each) for each in clocks]},
    }
    tables = [_delivery_table(delivered), _light_table(waits), _clock_table(clocks)]
    show(tables, figures, as_json=asked.json, backend=delivered.backend)
    return 0 if delivered.held and all(each.p99_ms <= LATE_S * 1e3 for each in clocks) else 1


def _light_table(found: Waits) -> Table:
    cases = {"measured": found.measured_ms, "by the file": found.file_ms, "replayed as rates": found.rates_ms}
    rows = [(name, *(f"{percentile(waits, part):.1f}" for part in (50, 95))) for name, waits in cases.items()]
    title = f"A packet each {LIGHT_S * 1e3:.0f} ms, alone on the link: its wait, ms"
    return Table(title, ("", "median", "95th percentile"), rows, [f"{len(found.measured_ms)} packets"])


def _delivery_table(found: Delivered) -> Table:
    rows = [
        ("mean error of 1 s windows", f"{found.mean_error:.2%}", f"≤ {MEAN_ERROR:.0%}"),
        ("mean of each window's own error", f"{found.mean_window_error:.2%}", f"≤ {MEAN_ERROR:.0%}"),
        ("correlation", f"{found.correlation:.5f}", f"≥ {CORRELATION}"),
    ]
    title = f"{found.source}, {len(found.asked_mbps)} s, {mean(found.asked_mbps):.2f} Mbit/s"
    return Table(title, ("delivered", "measured", "bar"), rows)


def _clock_table(clocks: list[Lateness]) -> Table:
    rows = [
        (
            f"{c.links} links, {c.step_s:g} s{', busy host' * c.busy}",
            str(c.ticks),
            *(f"{v:.2f}" for v in (c.p50_ms, c.p99_ms, c.worst_ms)),
        )
        for c in clocks
    ]
    notes = [
        f"bar: {LATE_S * 1e3:g} ms for the 99th percentile",
        "busy host: beside a process that keeps a processor busy, and a thread that holds this interpreter's lock",
    ]
    return Table("Lateness of rows, in ms", ("rows", "ticks", "p50", "p99", "worst"), rows, notes)


if __name__ == "__main__":
    run_program(main)
