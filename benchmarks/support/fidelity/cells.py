"""A cell of the grid of rate, round trip and loss: the request, the measurement, and why the two differ."""

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

#: TCP sends two or three frames at a time even on slow links, so the window is at least as long as 200 frames take.
TCP_WINDOW_S = 3.0
TCP_FRAMES = 200
UDP_WINDOW_S = 2.0
LOSS_S = 2.5

#: A host must carry this many times a link's rate to be on time with it: a host that is busy for more than 80 % of the
#: time now and then lets a bucket overflow that fills in a millisecond.
HEADROOM = 1.25
CEILING_WINDOW_S = 2.0

#: The default queue of a link, but at least this long: TCP's bursts need room even without a delay.
QUEUE_S = 0.020

#: A figure outside its tolerance is measured once more: this machine may have been disturbed, and a correct loss is
#: outside its 99 % interval once in a hundred times. An error above FAR tolerances, or a loss of nothing, is final.
LOOKS = 2
FAR = 4


@dataclass(frozen=True, slots=True)
class Cell:
    """The state asked of a link, the same both ways: Mbit/s, milliseconds of a round trip, percent."""

    rate_mbps: float
    rtt_ms: float
    loss_pct: float

    @property
    def state(self) -> LinkState:
        """The state of each direction, with a queue of QUEUE_S at least."""
        plain = LinkState(self.rate_mbps * 1e6, self.rtt_ms / 2e3, loss=self.loss_pct / 100)
        waiting = max(plain.queue_bytes, plain.rate_bps / 8 * QUEUE_S)
        return replace(plain, queue=Queue(waiting, "bytes"))

    def __str__(self) -> str:
        loss = f", {self.loss_pct:g} % loss" if self.loss_pct else ""
        return f"{self.rate_mbps:g} Mbit/s, {self.rtt_ms:g} ms{loss}"


@dataclass(frozen=True, slots=True)
class Figure:
    """A measured property of a cell, with its tolerance's verdict."""

    #: Relative for a rate, seconds for a round trip, excess datagrams for a loss. None without a measurement.
    error: float | None
    within: bool
    text: str
    #: Why the figure is outside of its tolerance, if that is known.
    reason: str | None = None
    #: True if the error is so large that a repeat can't change the verdict.
    far: bool = False
    #: How often it was measured.
    looks: int = 1
    #: False if this host could not carry the rate where nothing limited it, which is no fault of the link.
    carried: bool = True

    def __str__(self) -> str:
        mark = "" if self.within else " !" if self.carried else " host"
        return self.text + mark


@dataclass(frozen=True, slots=True)
class Result:
    """A measured cell; `loss` is None where none was asked for. `complaints` are errors that the subject reported."""

    subject: str
    cell: Cell
    rate: Figure
    rtt: Figure
    loss: Figure | None
    complaints: Sequence[str]

    @property
    def figures(self) -> dict[str, Figure]:
        """The figures by name, without a loss that was not asked for."""
        all_ = {"rate": self.rate, "round trip": self.rtt, "loss": self.loss}
        return {name: figure for name, figure in all_.items() if figure is not None}

    @property
    def within(self) -> bool:
        """True if all figures are within their tolerances."""
        return all(figure.within for figure in self.figures.values())

    @property
    def carried(self) -> bool:
        """True if this host could carry the rate where nothing limited it."""
        return all(figure.carried for figure in self.figures.values())

    def values(self) -> dict[str, Any]:
        """Return the result as a value for JSON."""
        return {**asdict(self), "within": self.within, "carried": self.carried}


def all_within(results: Iterable[Result]) -> bool:
    """Return whether all results are within tolerance, but for those beyond this host."""
    return all(result.within or not result.carried for result in results)


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
    """Measure a link that is in the cell's state. Tolerances are those of the verdict for this backend."""
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
    """Compare a rate that fell short with the rate that the host carries where nothing limits it."""
    if found.within or found.error is None or found.error > 0:
        return found
    ceiling = ceiling_bps(subject, CEILING_WINDOW_S)
    carried = ceiling >= HEADROOM * subject.state.rate_bps
    said = f"without any limit {ceiling / 1e6:.0f} Mbit/s come through"
    said = said if carried else f"this host can't carry it: {said}"
    return replace(found, carried=carried, reason="; ".join(filter(None, (said, found.reason))))


def why(rate: Rate, tolerance: float) -> str | None:
    """Return the measured cause of a rate's error, or None if nothing measured accounts for it."""
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
