"""Which capacity held an edge up, and what it carried then.

An edge that always has something to send is held up somewhere on its route: TCP takes what it can get. The links of
a route that the same edges share carry the same, so nothing tells them apart and the slowest of them is named. Where
edges part or meet, the link that holds an edge up is full whenever the edge is busy, whoever else is; so what it
carries is steady, while what a link with room to spare carries goes up and down with the other edges. Of links that
are about as steady, the one is named that is nearest to what it was believed to carry.

An edge need not have anything unsent to be held up: where members wait for each other, a few chunks are on their way
at a time, and a slow link has them all in its queue. Round trips show the queue, not its side. Where the way back
carried little of what it is believed to, it is on the way there.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from testbed.protocol import TICK_S, Tick
from testbed.telemetry.trains import Train, load, rate_bps, trains

#: The ordered pair of an overlay edge.
Pair = tuple[str, str]

#: What another link carries must be this much steadier for that to decide: what TCP gets of a full link that is all
#: its own is within a quarter of it, its share of one with others goes up and down with them.
STEADIER = 0.5

#: A way back that carried no more than this part of what it is believed to has no queue of its own.
CLEAR = 0.5

#: Trains that it takes to tell what is steady.
ENOUGH = 5

#: An edge that was busy for so many ticks of a round, or half of a short one, or sent so much in them, filled its path.
#: Where acknowledgements queue on the way back, TCP takes half a second to find a fast link's rate: bursts of 2 to 8
#: ticks over links of 7 to 14 Mbit/s, which had room to spare, came to a quarter to two thirds of that.
FILLED_TICKS, FILLED_BYTES = 12, 1024 * 1024
#: Of an edge that did not, trains of so many ticks say what its path carries at least. In shorter ones bursts of
#: acknowledgements came to twice what links carry.
AT_LEAST_TICKS = 4


@dataclass(frozen=True, slots=True)
class _Segment:
    """The links of a route that the same edges share: the slowest as believed, and the rate of each train."""

    links: tuple[str, ...]
    slowest: str
    rates: tuple[float, ...]
    believed_bps: float

    @property
    def filled(self) -> float:
        """The part of what the slowest is believed to carry."""
        return median(self.rates) / self.believed_bps

    def steadier(self, than: _Segment) -> bool:
        """Whether what it carries is so much steadier that this can be no accident."""
        return len(self.rates) >= ENOUGH and spread(self.rates) < STEADIER * spread(than.rates)


def bottlenecks(
    ticks: Mapping[Pair, Sequence[Tick]],
    routes: Mapping[Pair, Sequence[str]],
    believed_bps: Mapping[str, float],
    trusted: Collection[str] = (),
) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """What links carried in the trains of edges that they held up, and of those that they did not: at least that.

    Rates in bit/s of frames, by link. `trusted` links are named only when a route has no others. An edge that was busy
    for too short to fill its path names none. `routes` and `believed_bps` have the ways back of the edges too.
    """
    users: dict[str, set[Pair]] = {}
    for pair in ticks:
        for link in routes[pair]:
            users.setdefault(link, set()).add(pair)
    carried = {of: load(ticks[pair] for pair in of) for of in {frozenset(found) for found in users.values()}}
    ticks = {pair: _held_up(its, _back(pair, routes, users, carried, believed_bps)) for pair, its in ticks.items()}
    numbers = [tick.number for its in ticks.values() for tick in its]
    lasted = max(numbers, default=0) - min(numbers, default=0) + 1
    held: dict[str, list[float]] = {}
    passed: dict[str, list[float]] = {}
    for pair, its in ticks.items():
        found = trains(its)
        filled = _filled(found, its, min(FILLED_TICKS, lasted / 2))
        telling = found if filled else [train for train in found if len(train) >= AT_LEAST_TICKS]
        if not telling:
            continue
        parts: dict[frozenset[Pair], list[str]] = {}
        for link in routes[pair]:
            parts.setdefault(frozenset(users[link]), []).append(link)
        segments = []
        for of, links in parts.items():
            rates = tuple(rate_bps(train, carried[of]) for train in telling)
            slowest = min(links, key=lambda link: (link in trusted, believed_bps[link]))
            segments.append(_Segment(tuple(links), slowest, rates, believed_bps[slowest]))
        named = _named(segments, trusted) if filled else None
        for segment in segments:
            for link in segment.links:
                (held if link == named else passed).setdefault(link, []).extend(segment.rates)
    return held, passed


def _back(
    pair: Pair,
    routes: Mapping[Pair, Sequence[str]],
    users: Mapping[str, set[Pair]],
    carried: Mapping[frozenset[Pair], Mapping[int, int]],
    believed_bps: Mapping[str, float],
) -> list[tuple[Mapping[int, int], float]]:
    """The links of an edge's way back that others use: their bytes by tick, and the bytes of a tick that is full."""
    back = [link for link in routes.get(pair[::-1], ()) if link in users]
    return [(carried[frozenset(users[link])], believed_bps[link] * TICK_S / 8) for link in back]


def _held_up(its: Sequence[Tick], back: Sequence[tuple[Mapping[int, int], float]]) -> Sequence[Tick]:
    """An edge's ticks, busy too where there was a queue on the way there."""
    queued = [tick.number for tick in its if tick.queued_ms > tick.busy_ms]
    for carried, full in back:
        if sum(carried.get(number, 0) for number in queued) > CLEAR * full * len(queued):
            return its
    return [tick._replace(busy_ms=max(tick.busy_ms, tick.queued_ms)) for tick in its]


def _filled(found: Sequence[Train], ticks: Sequence[Tick], enough: float) -> bool:
    """Whether an edge was busy for `enough` in these trains of its ticks."""
    busy = {number for train in found for number in train}
    return len(busy) >= enough or sum(tick.bytes for tick in ticks if tick.number in busy) >= FILLED_BYTES


def _named(segments: Sequence[_Segment], trusted: Collection[str]) -> str:
    """The link that held up the edge of these segments."""
    doubted = [segment for segment in segments if segment.slowest not in trusted]
    candidates = doubted or segments
    steady = [one for one in candidates if not any(other.steadier(one) for other in candidates)]
    return max(steady, key=lambda segment: segment.filled).slowest


def spread(rates: Sequence[float]) -> float:
    """How far the rates lie apart: their median distance from their median, as a part of it."""
    middle = median(rates)
    return median(abs(rate - middle) for rate in rates) / middle if middle else float("inf")
