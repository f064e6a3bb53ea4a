"""A cell of the grid, rate by round trip by loss: what was asked, what was measured, and why it differs if it does."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from scipy.stats import binom

from benchmarks.support.fidelity.flows import Rate, ceiling_bps, round_trip_s, tcp_rate, udp_loss, udp_rate
from benchmarks.support.fidelity.subjects import Subject
from testbed.emulation.links.probe import round_trip_error
from testbed.link import MTU_FRAME_BYTES, LinkState, Queue
from testbed.run.conclusion.verdict import CPU_BUSY, RATE_TOLERANCE, RTT_TOLERANCE_S

#: TCP sends two or three frames at a time even on slow links, so these are counted for as long as 200 take.
TCP_WINDOW_S = 3.0
TCP_FRAMES = 200
UDP_WINDOW_S = 2.0
LOSS_S = 2.5

#: A host has to carry this much more than a link's rate to be on time with it: one that is busy for more than 80 % of
#: the time lets a bucket that fills in a millisecond run over now and then.
HEADROOM = 1.25
CEILING_WINDOW_S = 2.0

#: A queue as a link has by default, but of this time at least: TCP's bursts need room also where there is no delay.
QUEUE_S = 0.020

#: What is outside of its tolerance is measured once more: this machine may have been disturbed, and a loss that is as
#: asked is outside of its 99 % interval once in a hundred times. Not so where there is no delay or no loss at all.
LOOKS = 2
FAR = 4


@dataclass(frozen=True, slots=True)
class Cell:
    """What is asked of a link, the same both ways: Mbit/s, milliseconds there and back, percent."""

    rate_mbps: float
    rtt_ms: float
    loss_pct: float

    @property
    def state(self) -> LinkState:
        plain = LinkState(self.rate_mbps * 1e6, self.rtt_ms / 2e3, loss=self.loss_pct / 100)
        waiting = max(plain.queue_bytes, plain.rate_bps / 8 * QUEUE_S)
        return replace(plain, queue=Queue(waiting, "bytes"))

    def __str__(self) -> str:
        loss = f", {self.loss_pct:g} % loss" if self.loss_pct else ""
        return f"{self.rate_mbps:g} Mbit/s, {self.rtt_ms:g} ms{loss}"


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure of a cell: its error (relative, seconds, or datagrams lost too many), whether that is within its
    tolerance, as text, and why it is not. `far` is more than another look could tell. Not `carried` is what this host
    could not carry where nothing limited it: no fault of the link's.
    """

    error: float | None
    within: bool
    text: str
    reason: str | None = None
    far: bool = False
    looks: int = 1
    carried: bool = True

    def __str__(self) -> str:
        mark = "" if self.within else " !" if self.carried else " host"
        return self.text + mark


@dataclass(frozen=True, slots=True)
class Result:
    """A cell measured; `loss` is None where none was asked for. `complaints` are errors that the subject reported."""

    subject: str
    cell: Cell
    rate: Figure
    rtt: Figure
    loss: Figure | None
    complaints: Sequence[str]

    @property
    def figures(self) -> dict[str, Figure]:
        all_ = {"rate": self.rate, "round trip": self.rtt, "loss": self.loss}
        return {name: figure for name, figure in all_.items() if figure is not None}

    @property
    def within(self) -> bool:
        return all(figure.within for figure in self.figures.values())

    @property
    def carried(self) -> bool:
        return all(figure.carried for figure in self.figures.values())

    def values(self) -> dict[str, Any]:
        return {**asdict(self), "within": self.within, "carried": self.carried}


def share_within(results: Sequence[Result]) -> str:
    """Return how many of the results are within tolerance: `20 of 24, 4 beyond this host`."""
    beyond = sum(not result.carried for result in results)
    found = f"{sum(result.within for result in results)} of {len(results)}"
    return found + (f", {beyond} beyond this host" if beyond else "")


def texts(result: Result) -> list[str]:
    """Return the table cells of a result: rate, round trip and loss. The loss is empty where none was asked for."""
    return [str(result.rate), str(result.rtt), str(result.loss or "")]


def reasons(results: Iterable[Result]) -> list[str]:
    """Return a line for each figure outside its tolerance, with the measured reason or `unexplained`."""
    return [
        f"{result.cell}: {name} {figure.text}: {figure.reason or 'unexplained'}"
        for result in results
        for name, figure in result.figures.items()
        if not figure.within
    ]


def measure(subject: Subject, cell: Cell, backend: str) -> Result:
    """Measure a link that is as the cell asks. Tolerances are those of the verdict for this backend."""
    return Result(
        subject.name,
        cell,
        complaints=tuple(subject.complaints),
        rtt=_look(lambda: _rtt(subject, RTT_TOLERANCE_S[backend])),
        rate=_against_host(subject, _look(lambda: _rate(subject, RATE_TOLERANCE[backend]))),
        loss=_look(lambda: _loss(subject)) if cell.loss_pct else None,
    )


def _look(measured: Callable[[], Figure]) -> Figure:
    figure, looks = measured(), 1
    while not figure.within and not figure.far and looks < LOOKS:
        figure, looks = measured(), looks + 1
    return replace(figure, looks=looks)


def _rtt(subject: Subject, tolerance_s: float) -> Figure:
    found = round_trip_s(subject)
    if found is None:
        return Figure(None, False, "no answer", "none of the pings was answered")
    error = round_trip_error(found, subject.state, subject.state)
    off = found - 2 * subject.state.delay_s
    reason = f"{found * 1e3:.2f} ms where {2e3 * subject.state.delay_s:g} ms was asked for"
    within, far = abs(error) <= tolerance_s, abs(error) > FAR * tolerance_s
    return Figure(error, within, f"{off * 1e3:+.2f} ms", None if within else reason, far)


def _rate(subject: Subject, tolerance: float) -> Figure:
    if subject.state.loss:
        rate = udp_rate(subject, UDP_WINDOW_S)
    else:
        frames_s = TCP_FRAMES * MTU_FRAME_BYTES * 8 / subject.state.rate_bps
        rate = tcp_rate(subject, max(TCP_WINDOW_S, frames_s))
    tolerance += rate.resolution
    within = abs(rate.error) <= tolerance
    reason = None if within else why(rate, tolerance)
    return Figure(rate.error, within, f"{rate.error:+.2%}", reason)


def _against_host(subject: Subject, found: Figure) -> Figure:
    """A rate that fell short, held against what the host carries on the same way where nothing limits it."""
    if found.within or found.error is None or found.error > 0:
        return found
    ceiling = ceiling_bps(subject, CEILING_WINDOW_S)
    carried = ceiling >= HEADROOM * subject.state.rate_bps
    said = f"without any limit {ceiling / 1e6:.0f} Mbit/s come through"
    said = said if carried else f"this host can't carry it: {said}"
    return replace(found, carried=carried, reason="; ".join(filter(None, (said, found.reason))))


def why(rate: Rate, tolerance: float) -> str | None:
    """What was measured beside a rate that is off, if that accounts for it."""
    reasons = []
    if rate.cpu > CPU_BUSY:
        reasons.append(f"the processors were busy for {rate.cpu:.0%} of the time")
    if rate.waiting is not None and rate.waiting_error is not None:
        idle = 1 - rate.waiting
        if abs(rate.waiting_error) <= tolerance and -idle - tolerance <= rate.error < 0:
            reasons.append(
                f"for {idle:.1%} of the time nothing waited for the link; while something did, its rate was "
                f"{rate.waiting_error:+.1%} off"
            )
    if rate.offered < 1 - tolerance:
        reasons.append(f"the sender offered {rate.offered:.0%} of the link's rate")
    return "; ".join(reasons) or None


def _loss(subject: Subject) -> Figure:
    found = udp_loss(subject, LOSS_S)
    least, most = binom.interval(0.99, found.sent, subject.state.loss)
    within = least <= found.lost <= most
    text = f"{found.lost} of {found.sent}"
    reason = f"outside of {least:.0f} to {most:.0f}"
    if found.random is not None and found.queue_full is not None:
        elsewhere = found.lost - found.random - found.queue_full
        reason += (
            f"; the link lost {found.random} at random and {found.queue_full} to a full queue, {elsewhere} elsewhere"
        )
    error = found.lost - found.sent * subject.state.loss
    return Figure(error, within, text, None if within else reason, far=not found.lost)
