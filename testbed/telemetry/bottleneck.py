"""Which link held a train up, and so carried all that it can.

A train leaves its sender faster than its path passes it on, unless TCP lets it go no faster; so one link on its way was
full. Others on the way carried at least as much. A link that carried clearly more for another train at about the same
time was not full for this one; of those that are left, the one is named that is nearest to what it is believed to
carry.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from math import log

import numpy as np
from numpy.typing import NDArray

from testbed.protocol import Train
from testbed.telemetry.sample import Sample
from testbed.telemetry.trains import NOTHING, Carried, Floats, Pair, passed_bps

#: A train that came at this part of what TCP let go, or faster, was held up by TCP. One that came faster than TCP's
#: pace proves no queue: heads say a pace that is up to 1.25 times too low, and trains that TCP sent at 24 and 30 Mbit/s
#: over a link of 30 were taken for full ones.
HELD_BY_TCP = 0.85
#: What came so many times faster than TCP, or a probe, let it go had waited and came all at once: where a host caught
#: up, a link of 30 Mbit/s passed 55. That says nothing.
RUSHED = 1.5
#: A probe met a full link if it left so many times faster than it came. It is sent at three times what the path carried
#: at most of late; on a busy host probes of 14 packets left at 4.2 Mbit/s and came at 3.5, over a link of 13.
SPREAD_OUT = 1.5
#: Where the edge's own transfers brought more than this part of a probe's bytes meanwhile, the probe says what the link
#: carries at least: of 30 Mbit/s it got 24.5 beside a round whose train brought 9.6.
SHARED = 0.1

#: While TCP begins, or begins again, as BBR does when it forgot a path in a loss (25 Mbit/s became 0.5, and 6 again
#: after 6 s), a train met a full link only if it came at less than half of what TCP let go: trains of 2 and 6 Mbit/s
#: over a link of 17.8 were once full. The first window is ten packets, which BBR lets go at BEGIN_GAIN times as many
#: in a round trip; after that what TCP lets go doubles.
BEGIN_BYTES, BEGIN_GAIN, BEGIN_HELD, DOUBLED = 10 * 1448, 2.89, 0.5, 1.9

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
    beside = {pair: [*before.get(pair, ()), *later.get(pair, ())] for pair in {**trains, **before, **later}}
    for pair, its in trains.items():
        beside[pair] += filter(_rushed, its)
    trains = {pair: [train for train in its if not _rushed(train)] for pair, its in trains.items()}
    passed = passed_bps(trains, routes, delay_s, beside)
    most = _most(passed, trains)
    found: dict[str, list[Sample]] = {}
    for pair, its in trains.items():
        doubted = [link for link in routes[pair] if link not in trusted] or list(routes[pair])
        looked = _looked(_by_tcp([*before.get(pair, ()), *its]), round_trip_s[pair])
        beginning = _beginning(_by_tcp([*before.get(pair, ()), *its, *later.get(pair, ())]), round_trip_s[pair])
        carried = Carried(_by_tcp([*its, *beside.get(pair, ())]))
        shared = {train for train in its if train.is_probe and _bytes_during(train, carried) > SHARED * train.bytes}
        for number, train in enumerate(its):
            rates = {link: float(passed[pair, link][number]) for link in routes[pair]}
            middle_s = train.began_s + train.seconds / 2
            full = None
            if train not in shared and (_slowed(train, train in beginning) or train in looked):
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


def _rushed(train: Train) -> bool:
    most = max(train.allowed_bytes_s, train.burst_bytes_s)
    return bool(most) and train.bytes > RUSHED * most * train.seconds


def _slowed(train: Train, beginning: bool) -> bool:
    """Whether a train came clearly slower than TCP let it, or than a probe left."""
    rate, allowed = train.bytes / train.seconds, train.allowed_bytes_s
    if train.is_probe:
        return SPREAD_OUT * rate <= allowed
    return not allowed or rate < (BEGIN_HELD if beginning else HELD_BY_TCP) * allowed


def _bytes_during(train: Train, carried: Carried) -> float:
    began, ended = carried.by(np.array([train.began_s, train.began_s + train.seconds]))
    return float(ended - began)


def _beginning(trains: Sequence[Train], round_trip_s: float) -> set[Train]:
    """Return the trains that came while TCP found out, or found out again, how much it may let go.

    These are the trains of the first round trips, and those for which TCP let twice as much go within LOOKED_TRIPS
    later, or half as much within as many earlier, with no pause of more than a round trip.
    """
    opened = BEGIN_GAIN * BEGIN_BYTES
    found = {
        train
        for train in trains
        if 0 < train.allowed_bytes_s * round_trip_s <= BEGIN_BYTES / HELD_BY_TCP
        or abs(train.burst_bytes_s * round_trip_s / opened - 1) < 0.1
    }
    for run in _unbroken(trains, round_trip_s + PAUSE_S):
        times_s = np.array([train.began_s for train in run])
        bursts = np.array([train.burst_bytes_s for train in run])
        for number, train in enumerate(run):
            first, last = np.searchsorted(times_s, train.began_s + LOOKED_TRIPS * round_trip_s * np.array([-1, 1]))
            grew = bursts[first : number + 1].min() * DOUBLED < bursts[number]
            if grew or bursts[number:last].max(initial=0) > DOUBLED * bursts[number]:
                found.add(train)
    return found


def _unbroken(trains: Sequence[Train], pause_s: float = PAUSE_S) -> Iterator[list[Train]]:
    """Yield the trains in order, by runs without a longer pause."""
    run: list[Train] = []
    ended_s = 0.0
    for train in sorted(trains):
        if run and train.began_s - ended_s > pause_s:
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


class _Most:
    """What a link carried at most about a time, by the trains that passed it."""

    def __init__(self, parts: Sequence[tuple[Floats, Floats, Floats]]) -> None:
        middles_s, rates_bps, sizes = (np.concatenate(part) for part in zip(*parts, strict=True))
        order = np.argsort(rates_bps)  # once, for it is asked about many times
        self._middles_s, self._rates_bps, self._bytes = middles_s[order], rates_bps[order], sizes[order]

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
