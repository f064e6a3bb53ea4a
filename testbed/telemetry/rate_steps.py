"""Finds steps: large changes of the rate of a link in use that its trace makes and no event announces. Pure.

Rates are sampled about once a second. A link's rate has stepped when the newest LOOKS rates all lie outside the range
of the rates before them, and the two medians differ by more than FACTOR. A rate that always varies by as much makes
hardly any step: one drawn each second between a third and three times its mean makes one in 45 minutes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from math import inf
from statistics import median
from typing import Any

from testbed.link import link_ends

#: A rate that changes by more than this factor is a step.
FACTOR = 1.5

#: The samples that must agree on the new rate: one alone may be a trace's noise, three are not.
LOOKS = 3

#: The least and the greatest number of earlier samples that the newest are compared with: about half a minute.
LEAST_BEFORE, MOST_BEFORE = 10, 30

#: Samples for which a step of one direction waits for a step of the other: a noisy trace shows it later.
WAITS = 2

#: A link is in use if it carried at least this share of its rate over the kept samples. On the quickstart on a busy
#: host, links of the plan in force carried 5 % and more, and links that only probes passed 2 % at most.
IN_USE = 0.03


@dataclass(frozen=True, slots=True)
class RateStep:
    """A change of a rate from `before_bps` to `after_bps` at `at_s`."""

    at_s: float
    #: A link (`paris->tokyo`), or a pair whose two directions changed alike (`paris-tokyo`).
    target: str
    before_bps: float
    after_bps: float

    @property
    def kind(self) -> str:
        """The kind of event that the step is: `drop` or `rise`."""
        return "drop" if self.after_bps < self.before_bps else "rise"

    def to_event(self) -> dict[str, Any]:
        """Return the step as an event of a run, with the keys of the experiment's own events and both rates."""
        rates = {"before_bps": self.before_bps, "after_bps": self.after_bps}
        return {"at_s": self.at_s, "kind": self.kind, "target": self.target, **rates}

    def __str__(self) -> str:
        before, after = (
            f"{bps / 1e6:.3g}" if bps < 999.5e6 else f"{bps / 1e6:.0f}" for bps in (self.before_bps, self.after_bps)
        )
        return f"{self.kind} {self.target}: {before} -> {after} Mbit/s by its trace"


@dataclass(slots=True)
class _Rates:
    """The newest samples of one link."""

    link: str
    #: (time, rate in bit/s, bytes carried by then).
    looks: deque[tuple[float, float, int]] = field(default_factory=lambda: deque(maxlen=MOST_BEFORE + LOOKS))
    #: The least and the greatest rate since the last step.
    low: float = inf
    high: float = 0.0

    def add(self, at_s: float, rate_bps: float, carried: int) -> RateStep | None:
        """Add a sample. Return the step of the rate that it completes, or None."""
        if self.looks and carried < self.looks[-1][2]:
            self.looks.clear()  # the link was removed and made again
            self.low, self.high = inf, 0.0
        self.looks.append((at_s, rate_bps, carried))
        self.low, self.high = min(self.low, rate_bps), max(self.high, rate_bps)
        if self.high <= self.low * FACTOR or len(self.looks) < LEAST_BEFORE + LOOKS:
            return None
        newest = [self.looks[place] for place in range(-LOOKS, 0)]
        after = [rate for _, rate, _ in newest]
        before = [rate for _, rate, _ in islice(self.looks, len(self.looks) - LOOKS)]
        if min(before) <= max(after) and max(before) >= min(after):
            return None
        usual, now = median(before), median(after)
        if max(usual, now) <= FACTOR * min(usual, now) or not self._in_use():
            return None
        middle = (usual * now) ** 0.5  # the first of the newest may still be nearer to those before
        since = [look for look in newest if (look[1] < middle) == (now < middle)]
        self.looks = deque(since, self.looks.maxlen)
        self.low, self.high = min(rate for _, rate, _ in since), max(rate for _, rate, _ in since)
        return RateStep(since[0][0], self.link, usual, now)

    def _in_use(self) -> bool:
        (began_s, _, first), (ended_s, _, last) = self.looks[0], self.looks[-1]
        could = median(rate for _, rate, _ in self.looks) * (ended_s - began_s)
        return could > 0 and 8 * (last - first) >= IN_USE * could


class RateSteps:
    """Finds lasting changes of links' rates (steps) in samples of all links, which are added in order of time."""

    def __init__(self) -> None:
        self._links: dict[str, _Rates] = {}
        #: Steps of one direction, and the number of samples for which each has waited for the other direction.
        self._single: dict[str, tuple[RateStep, int]] = {}

    def look(self, at_s: float, rates: Mapping[str, float | None], carried: Mapping[str, int]) -> list[RateStep]:
        """Add one sample of all links, and return the lasting changes of rates (steps) that it confirms.

        Args:
            at_s: When the sample was taken, in seconds.
            rates: Link -> rate in bit/s; None while the link is down.
            carried: Link -> bytes that it had carried by then.

        Returns:
            The steps that are complete by now; a pair whose two directions step alike has one.
        """
        found: dict[str, RateStep] = {}
        for link, rate_bps in rates.items():
            if rate_bps is None or link not in carried:
                self._links.pop(link, None)
            elif step := self._links.setdefault(link, _Rates(link)).add(at_s, rate_bps, carried[link]):
                found[link] = step
        return self._paired(found)

    def rest(self) -> list[RateStep]:
        """Return the steps that still wait for their other direction, at the end of the samples."""
        return self._paired({}, last=True)

    def forget(self, links: Iterable[str] | None = None) -> None:
        """Forget the samples of these links, or of all, whose rates an event of the run has changed."""
        for link in list(self._links) if links is None else links:
            self._links.pop(link, None)
            self._single.pop(link, None)

    def _paired(self, found: Mapping[str, RateStep], last: bool = False) -> list[RateStep]:
        """Return the steps whose other direction stepped too, and those that have waited for it for WAITS samples."""
        ready = []
        for link, step in found.items():
            source, target = link_ends(link)
            other, _ = self._single.get(f"{target}->{source}", (None, 0))
            if other is not None and other.kind == step.kind:
                del self._single[f"{target}->{source}"]
                pair = "-".join(sorted((source, target)))
                ready.append(RateStep(min(step.at_s, other.at_s), pair, step.before_bps, step.after_bps))
            else:
                self._single[link] = (step, -1)
        for link, (step, waited) in list(self._single.items()):
            self._single[link] = (step, waited + 1)
            if waited + 1 == WAITS or last:
                ready.append(self._single.pop(link)[0])
        return ready


def recorded_steps(
    tracks: Mapping[str, tuple[Sequence[float], Sequence[float | None]]],
    samples: Iterable[tuple[float, Mapping[str, int]]],
    events: Iterable[Mapping[str, Any]],
) -> list[RateStep]:
    """Find the steps of a run that is over: the same ones as while it ran.

    Args:
        tracks: Link -> (times, the rate in bit/s from each time on); None while the link is down or removed.
        samples: (time, link -> bytes that it had carried by then), in order.
        events: The run's own events, in order: the samples before a change of a link or a network swap are forgotten.
    """
    found = RateSteps()
    tracks = {link: track for link, track in tracks.items() if _may_step(track[1])}
    places = dict.fromkeys(tracks, 0)
    announced = deque(event for event in events if event["kind"] in ("change", "swap"))
    steps: list[RateStep] = []
    for at_s, carried in samples:
        while announced and announced[0]["at_s"] <= at_s:
            event = announced.popleft()
            found.forget([event["target"]] if event["kind"] == "change" else None)
        rates = {}
        for link, (moments, values) in tracks.items():
            place = places[link]
            while place < len(moments) and moments[place] <= at_s:
                place += 1
            places[link] = place
            rates[link] = values[place - 1] if place else None
        steps += found.look(at_s, rates, carried)
    return [*steps, *found.rest()]


def _may_step(rates: Sequence[float | None]) -> bool:
    known = [rate for rate in rates if rate is not None]
    return bool(known) and max(known) > FACTOR * min(known)
