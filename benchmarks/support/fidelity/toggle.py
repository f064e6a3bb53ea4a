"""A busy link toggled between two rates: the most that passes in a window, and what TCP notices."""

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

#: The connection's window is 200 KiB, which every kernel allows. The link holds 125 kB at its faster rate, so it is
#: always busy; its queue holds more than the window, so that only a change can lose a segment.
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
    """The outcome of toggling a link."""

    subject: str
    toggles: int
    #: The highest rate that arrived in a window of 100 ms.
    peak_bps: float
    #: The most bytes relative to what a window allows: EXCESS times the rate in force, plus one burst.
    excess: float
    retransmissions: int
    resets: int
    #: The longest change, in seconds.
    change_s: float

    @property
    def within(self) -> bool:
        """True if no window exceeded what was allowed, and no connection broke."""
        return self.excess <= 1 and self.resets == 0


@dataclass(frozen=True, slots=True)
class Change:
    """A change of the rate: the new rate may be in force from `began`, and is in force from `done`."""

    began: float
    done: float
    rate_bps: float


def asked(rate_bps: float) -> LinkState:
    """Return the link's state at one of its rates."""
    return LinkState(rate_bps, DELAY_S, queue=QUEUE)


def toggle(subject: Subject) -> Toggled:
    """Change the rate of a link, TOGGLES times, while one TCP connection keeps it busy."""
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
    """Read the counters every SAMPLE_S seconds until the context is left; yields the growing list."""
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
    """Yield (begin, end, bytes of frames that arrived) for each window that begins with a look."""
    last = 0
    for first in looks:
        while last + 1 < len(looks) and looks[last].at < first.at + WINDOW_S:
            last += 1
        if looks[last].at < first.at + WINDOW_S:
            return
        payload = looks[last].payload_since(first, TCP_HEADERS_BYTES)
        yield first.at, looks[last].at, payload * MTU_FRAME_BYTES / TCP_PAYLOAD_BYTES


def allowed_bytes(changes: Sequence[Change], begin: float, end: float) -> float:
    """Return the bytes that may arrive in a window.

    They follow from the highest rate in force when the bytes left the queue, which was at most one delay earlier.
    """
    ends = [change.done for change in changes[1:]] + [float("inf")]
    rate = max(
        change.rate_bps
        for change, over in zip(changes, ends, strict=True)
        if change.began <= end and over >= begin - DELAY_S - SLACK_S
    )
    return EXCESS * rate / 8 * (end - begin) + burst_bytes(rate)


def _tcp(subject: Subject) -> dict[str, int]:
    """Return the sums of both hosts' TCP counters; `resets` are the connections that either host broke off."""
    sums: dict[str, int] = {}
    for host in (subject.source, subject.target):
        lines = Path(f"/proc/{host.pid}/net/snmp").read_text().splitlines()
        names, values = (line.split()[1:] for line in lines if line.startswith("Tcp:"))
        for name, value in zip(names, values, strict=True):
            sums[name] = sums.get(name, 0) + int(value)
    return {**sums, "resets": sums["EstabResets"] + sums["OutRsts"]}
