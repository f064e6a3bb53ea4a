"""Which link held a train up, and so carried all that it can.

A train leaves its sender faster than its path passes it on, unless TCP lets it go no faster; so one link on its way was
full. Others on the way carried at least as much. A link that carried clearly more for another train at about the same
time was not full for this one; of those that are left, the one is named that is nearest to what it is believed to
carry.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import accumulate, pairwise
from math import log

import numpy as np
from numpy.typing import NDArray

from testbed.protocol import Train
from testbed.telemetry.sample import Sample
from testbed.telemetry.trains import NOTHING, Floats, Pair, passed_bps

#: A train that came at this part of what TCP let go was held up by that. One that came so many times faster than TCP
#: lets anything go, then or by the next train, had waited in a queue. A probe that came so near to as it left met no
#: full link, and that is all there is to say of one: what follows here is about what TCP does in time.
HELD_BY_TCP, QUEUED = 0.85, 1.1

#: But where the edge carried so much more within so many seconds before, the path made TCP slower: its pace only falls
#: when less comes through, while one that is too low stays so or grows.
FELL, FELL_S = 0.75, 20.0

#: Unless TCP has only begun, or begins again, as BBR does when it forgot a path in a loss (25 Mbit/s became 0.5, and 6
#: again after 6 s): it lets ten packets go in a round trip, and more and more without a pause.
BEGIN_BYTES, DOUBLED = 10 * 1448, 1.9

#: Nor does TCP hold up what was sent without a pause for so many round trips, in which it looked for more (BBR once in
#: eight) and did not find so much of it.
LOOKED_TRIPS, MORE = 10, 1.1
#: A pause: a sender without more to send makes one, trains that are cut don't.
PAUSE_S = 0.005

#: A link that carried so many times as much at about the same time was not full. Trains of 64 KiB on links of 5 to 40
#: Mbit/s lie within a tenth of each other.
CLEARLY = 1.15
#: About the same time.
NEAR_S = 1.0
#: What a link carried then is this quantile of what it did for trains: the fastest may owe it to a late stamp.
QUANTILE = 0.8


def samples(
    trains: Mapping[Pair, Sequence[Train]],
    routes: Mapping[Pair, Sequence[str]],
    delay_s: Mapping[str, float],
    believed_bps: Mapping[str, float],
    round_trip_s: Mapping[Pair, float],
    trusted: Collection[str] = (),
    before: Mapping[Pair, Sequence[Train]] = NOTHING,
    later: Mapping[Pair, Sequence[Train]] = NOTHING,
) -> dict[str, list[Sample]]:
    """What the trains of each edge say of the links of its route, in the order of the edges.

    `trusted` links are taken to be full only where a route has no others. `before` and `later` are trains that came
    earlier and later, as far as that is known.
    """
    beside = {pair: [*before.get(pair, ()), *later.get(pair, ())] for pair in {**before, **later}}
    passed = passed_bps(trains, routes, delay_s, beside)
    most = _most(passed, trains)
    found: dict[str, list[Sample]] = {}
    for pair, its in trains.items():
        doubted = [link for link in routes[pair] if link not in trusted] or list(routes[pair])
        earlier = _Most.of([*before.get(pair, ()), *its])
        looked = _looked(_by_tcp([*before.get(pair, ()), *its]), round_trip_s[pair])
        beginning = _beginning(_by_tcp([*before.get(pair, ()), *its, *later.get(pair, ())]), round_trip_s[pair])
        following = dict(pairwise(_by_tcp(its)))
        for number, train in enumerate(its):
            rates = {link: float(passed[pair, link][number]) for link in routes[pair]}
            middle_s = train.began_s + train.seconds / 2
            full = None
            held = _held_back(train, following.get(train, train)) and train not in looked
            fell = (
                not train.is_probe and train not in beginning and _bits_s(train) < FELL * earlier.before(train.began_s)
            )
            if not held or fell:
                left = [link for link in doubted if most[link].near(middle_s) <= CLEARLY * rates[link]] or [
                    link for link in doubted if most[link].beside(middle_s) <= CLEARLY * rates[link]
                ]
                full = min(left, key=lambda link: abs(log(rates[link] / believed_bps[link])), default=None)
            for link, rate_bps in rates.items():
                sample = Sample(rate_bps, train.began_s, train.seconds, train.bytes, link == full)
                found.setdefault(link, []).append(sample)
    return found


def _by_tcp(trains: Sequence[Train]) -> list[Train]:
    return [train for train in trains if not train.is_probe]


def _held_back(train: Train, after: Train) -> bool:
    """Whether a train that `after` follows came as fast as TCP let it, or as a probe left, and no faster."""
    rate, allowed = train.bytes / train.seconds, train.allowed_bytes_s
    most = max(*train[3:], *after[3:])
    return bool(allowed) and HELD_BY_TCP * allowed <= rate <= QUEUED * most


def _beginning(trains: Sequence[Train], round_trip_s: float) -> set[Train]:
    """The trains that came while TCP found out, or found out again, how much it may let go: the first round trips, and
    where without a pause it let twice as much go later, or half as much earlier."""
    found = {train for train in trains if 0 < train.allowed_bytes_s * round_trip_s <= BEGIN_BYTES / HELD_BY_TCP}
    for run in _unbroken(trains):
        least = list(accumulate((train.burst_bytes_s for train in run), min))
        most = list(accumulate((train.burst_bytes_s for train in reversed(run)), max))[::-1]
        for train, lowest, highest in zip(run, least, most, strict=True):
            if highest > DOUBLED * train.burst_bytes_s or train.burst_bytes_s > DOUBLED * lowest:
                found.add(train)
    return found


def _unbroken(trains: Sequence[Train]) -> Iterator[list[Train]]:
    """The trains in order, by runs in which one followed the other."""
    run: list[Train] = []
    ended_s = 0.0
    for train in sorted(trains):
        if run and train.began_s - ended_s > PAUSE_S:
            yield run
            run = []
        run.append(train)
        ended_s = max(ended_s, train.began_s + train.seconds)  # those of several connections overlap
    if run:
        yield run


def _looked(trains: Sequence[Train], round_trip_s: float) -> set[Train]:
    """The trains by whose end TCP had looked for more, without a pause, and had not found it."""
    found: set[Train] = set()
    for run in _unbroken(trains):
        first = 0
        for number, train in enumerate(run):
            since_s = train.began_s + train.seconds - LOOKED_TRIPS * round_trip_s
            while first < number and run[first + 1].began_s <= since_s:
                first += 1
            if run[first].began_s <= since_s and train.allowed_bytes_s <= MORE * run[first].allowed_bytes_s:
                found.add(train)
    return found


def _bits_s(train: Train) -> float:
    return 8 * train.bytes / train.seconds


class _Most:
    """What a link, or an edge, carried at most about a time, by the trains that passed it."""

    def __init__(self, parts: Sequence[tuple[Floats, Floats, Floats]]) -> None:
        middles_s, rates_bps, sizes = (np.concatenate(part) for part in zip(*parts, strict=True))
        order = np.argsort(rates_bps)  # once, for it is asked about many times
        self._middles_s, self._rates_bps, self._bytes = middles_s[order], rates_bps[order], sizes[order]

    @classmethod
    def of(cls, trains: Sequence[Train]) -> _Most:
        """Of an edge's own trains."""
        middles_s = np.array([train.began_s + train.seconds / 2 for train in trains])
        sizes = np.array([float(train.bytes) for train in trains])
        return cls([(middles_s, np.array([_bits_s(train) for train in trains]), sizes)])

    def before(self, at_s: float) -> float:
        """Bit/s in the FELL_S before a time."""
        recent = (self._middles_s < at_s) & (self._middles_s >= at_s - FELL_S)
        return self._quantile(recent)

    def near(self, at_s: float) -> float:
        """Bit/s."""
        near = np.abs(self._middles_s - at_s) <= NEAR_S
        return self._quantile(near)

    def beside(self, at_s: float) -> float:
        """Bit/s both before and after it, as far as there are trains beside the one whose middle that is: a link that
        fell or rose just then carried more on one side alone."""
        before = (self._middles_s >= at_s - NEAR_S) & (self._middles_s <= at_s)
        after = (self._middles_s >= at_s) & (self._middles_s <= at_s + NEAR_S)
        sides = [side for side in (before, after) if side.sum() > 1] or [before]
        return min(map(self._quantile, sides))

    def _quantile(self, chosen: NDArray[np.bool_]) -> float:
        """The rate that QUANTILE of the chosen bytes are not above; 0 of none."""
        rates_bps, reached = self._rates_bps[chosen], np.cumsum(self._bytes[chosen])
        if not len(reached):
            return 0.0
        return float(rates_bps[min(np.searchsorted(reached, QUANTILE * reached[-1]), len(reached) - 1)])


def _most(passed: Mapping[tuple[Pair, str], Floats], trains: Mapping[Pair, Sequence[Train]]) -> dict[str, _Most]:
    parts: dict[str, list[tuple[Floats, Floats, Floats]]] = {}
    for (pair, link), rates_bps in passed.items():
        middles_s = np.array([train.began_s + train.seconds / 2 for train in trains[pair]])
        parts.setdefault(link, []).append((middles_s, rates_bps, np.array([float(t.bytes) for t in trains[pair]])))
    return {link: _Most(its) for link, its in parts.items()}
