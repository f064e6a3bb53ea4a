"""A busy link toggled between two rates: whether more passes in between than either allows, and whether TCP notices."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.support.fidelity.flows import TCP_HEADERS_BYTES, Look, flowing, look
from benchmarks.support.fidelity.subjects import Subject
from testbed.emulation.shaping.netem import burst_bytes
from testbed.link import MTU_FRAME_BYTES, TCP_PAYLOAD_BYTES, LinkState, Queue

SLOW_BPS, FAST_BPS = 50e6, 100e6
TOGGLES = 20
PERIOD_S = 0.3

#: The connection may have 200 KiB on its way, which every kernel allows: more than the 125 kB that the link holds at
#: its faster rate, so it is always busy, and less than its queue holds, so nothing but the change can lose a segment.
WINDOW = "200K"
QUEUE = Queue(1 << 20, "bytes")
DELAY_S = 0.005

WINDOW_S = 0.100
EXCESS = 1.1
SAMPLE_S = 0.002
#: A look at the counter may come this much late.
SLACK_S = 0.005
BEFORE_S = 1.0


@dataclass(frozen=True, slots=True)
class Toggled:
    """`peak_bps` is the most that arrived in any window of 100 ms; `excess` the most relative to what was allowed in
    that window, 1.1 times the rate in force plus one burst; `change_s` the longest change.
    """

    subject: str
    toggles: int
    peak_bps: float
    excess: float
    retransmissions: int
    resets: int
    change_s: float

    @property
    def within(self) -> bool:
        return self.excess <= 1 and self.resets == 0


@dataclass(frozen=True, slots=True)
class Change:
    """From `began` the new rate may be in force, from `done` it is."""

    began: float
    done: float
    rate_bps: float


def asked(rate_bps: float) -> LinkState:
    """The link at one of its rates."""
    return LinkState(rate_bps, DELAY_S, queue=QUEUE)


def toggle(subject: Subject) -> Toggled:
    """Change the rate of a link that one TCP connection keeps busy, again and again."""
    before = _tcp(subject)
    with flowing(subject, ["-w", WINDOW]):
        time.sleep(BEFORE_S)
        with _sampled(subject) as looks:
            changes = [Change(looks[0].at, looks[0].at, subject.state.rate_bps)]
            for number in range(TOGGLES):
                began = time.monotonic()
                subject.change(asked(SLOW_BPS if number % 2 else FAST_BPS))
                changes.append(Change(began, time.monotonic(), subject.state.rate_bps))
                time.sleep(max(0.0, looks[0].at + (number + 1) * PERIOD_S - time.monotonic()))
        after = _tcp(subject)
    found = list(windows(looks))
    return Toggled(
        subject.name,
        TOGGLES,
        peak_bps=max(size * 8 / (end - begin) for begin, end, size in found),
        excess=max(size / allowed_bytes(changes, begin, end) for begin, end, size in found),
        retransmissions=after["RetransSegs"] - before["RetransSegs"],
        resets=after["resets"] - before["resets"],
        change_s=max(change.done - change.began for change in changes),
    )


@contextmanager
def _sampled(subject: Subject) -> Iterator[list[Look]]:
    """Looks at what has arrived, one every few milliseconds until this is left."""
    looks = [look(subject)]
    ended = threading.Event()

    def sample() -> None:
        while not ended.wait(SAMPLE_S):
            looks.append(look(subject))

    thread = threading.Thread(target=sample)
    thread.start()
    try:
        yield looks
    finally:
        ended.set()
        thread.join()


def windows(looks: Sequence[Look]) -> Iterator[tuple[float, float, float]]:
    """(begin, end, bytes of frames that arrived) of every window that begins with a look."""
    last = 0
    for first in looks:
        while last + 1 < len(looks) and looks[last].at < first.at + WINDOW_S:
            last += 1
        if looks[last].at < first.at + WINDOW_S:
            return
        payload = looks[last].payload_since(first, TCP_HEADERS_BYTES)
        yield first.at, looks[last].at, payload * MTU_FRAME_BYTES / TCP_PAYLOAD_BYTES


def allowed_bytes(changes: Sequence[Change], begin: float, end: float) -> float:
    """What may arrive in a window, by the highest rate in force while it left the queue, one delay earlier at most."""
    ends = [change.done for change in changes[1:]] + [float("inf")]
    rate = max(
        change.rate_bps
        for change, over in zip(changes, ends, strict=True)
        if change.began <= end and over >= begin - DELAY_S - SLACK_S
    )
    return EXCESS * rate / 8 * (end - begin) + burst_bytes(rate)


def _tcp(subject: Subject) -> dict[str, int]:
    """The source's and target's TCP counters, and in `resets` what either of them broke off."""
    sums: dict[str, int] = {}
    for host in (subject.source, subject.target):
        lines = Path(f"/proc/{host.pid}/net/snmp").read_text().splitlines()
        names, values = (line.split()[1:] for line in lines if line.startswith("Tcp:"))
        for name, value in zip(names, values, strict=True):
            sums[name] = sums.get(name, 0) + int(value)
    return {**sums, "resets": sums["EstabResets"] + sums["OutRsts"]}
