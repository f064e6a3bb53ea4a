"""Finds the link that was full while a train passed its route, so that the train shows the rate of that link.

A train leaves its sender faster than its route carries it, unless TCP paces it, so one link of the route was full. The
other links carried at least the train's rate. A link that carried clearly more during another train at about the same
time was not full. A link behind one that had next to no room is not taken to be full: the train was slowed before it.
Nor is a link with much room behind a link that carried more than its estimated rate. Of the remaining links, the one
whose estimated rate is nearest is taken to be the full one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import log

import numpy as np
from numpy.typing import NDArray

from testbed.link import MTU_FRAME_BYTES, TCP_PAYLOAD_BYTES
from testbed.protocol import Train

#: The sender and the receiver of an overlay edge.
Pair = tuple[str, str]

Floats = NDArray[np.float64]

#: No trains.
NOTHING: Mapping[Pair, Sequence[Train]] = {}

#: Bits of frames per byte of payload.
FRAME_BITS = 8 * MTU_FRAME_BYTES / TCP_PAYLOAD_BYTES


@dataclass(frozen=True, slots=True)
class Sample:
    """The rate at which one train passed a link."""

    #: Bit/s of frames.
    rate_bps: float
    #: When the train's first packet arrived (Unix time).
    began_s: float
    seconds: float
    #: Bytes of the train.
    bytes: int
    #: Whether the train filled the link: a full link carries no more than this rate, any other at least this rate.
    full: bool

    @property
    def ended_s(self) -> float:
        """The time at which the train's last packet arrived (Unix time)."""
        return self.began_s + self.seconds


class Carried:
    """A running total over time: the payload bytes that an edge's packet trains have delivered."""

    def __init__(self, trains: Sequence[Train]) -> None:
        order = sorted(trains)
        times, total = [-np.inf], [0.0]
        for train in order:
            # Trains of several connections may overlap; their bytes then count one after the other.
            began_s = max(train.began_s, times[-1])
            times += [began_s, max(train.began_s + train.seconds, began_s)]
            total += [total[-1], total[-1] + train.bytes]
        self._times = np.array([*times[1:], np.inf] if order else [0.0])
        self._total = np.array([*total[1:], total[-1]] if order else [0.0])

    def by(self, times: Floats) -> Floats:
        """Return the total of the bytes that had arrived by each of these times (Unix time)."""
        found: Floats = np.interp(times, self._times, self._total)
        return found


def passed_bps(
    trains: Mapping[Pair, Sequence[Train]],
    routes: Mapping[Pair, Sequence[str]],
    delay_s: Mapping[str, float],
    other_trains: Mapping[Pair, Sequence[Train]] = NOTHING,
) -> dict[tuple[Pair, str], Floats]:
    """Return the bit/s of frames that links carried while trains passed them: by (edge, link), one rate for each train.

        a -- x -- b     trains arrive at b and at c; they passed a-x earlier, by the delay of the links after it
              `-- c

    Args:
        trains: The trains of each edge.
        routes: The links of each edge, in order.
        delay_s: The one-way delay of each link in seconds; 0 for a link that is not named.
        other_trains: Earlier and later trains of each edge, whose bytes links carried too.
    """
    trains = {pair: its for pair, its in trains.items() if its}
    whole = {pair: [*trains.get(pair, ()), *other_trains.get(pair, ())] for pair in {**trains, **other_trains}}
    users: dict[str, list[Pair]] = {}
    for pair in whole:
        for link in routes[pair]:
            users.setdefault(link, []).append(pair)
    carried = {pair: Carried(its) for pair, its in whole.items()}
    beyond = {pair: _beyond(routes[pair], delay_s) for pair in whole}
    found = {}
    for pair, its in trains.items():
        began = np.array([train.began_s for train in its])
        seconds = np.array([train.seconds for train in its])
        own = np.array([float(train.bytes) for train in its])
        tcp = carried[pair] if len(by_tcp := _by_tcp(whole[pair])) == len(whole[pair]) else Carried(by_tcp)
        # A pair's other connections pass the same links. A probe is compared with the pair's transfers elsewhere.
        beside = np.maximum(tcp.by(began + seconds) - tcp.by(began) - own, 0.0)
        own = own + np.where([train.is_probe for train in its], 0.0, beside)
        for link in routes[pair]:
            total = own.copy()
            for other in users[link]:
                if other != pair:
                    shift = beyond[other][link] - beyond[pair][link]
                    total += carried[other].by(began + seconds + shift) - carried[other].by(began + shift)
            found[pair, link] = total / seconds * FRAME_BITS
    return found


def _beyond(route: Sequence[str], delay_s: Mapping[str, float]) -> dict[str, float]:
    """Return link → the delay from the link's end to the end of the route, in seconds."""
    beyond, left = {}, 0.0
    for link in reversed(route):
        beyond[link] = left
        left += delay_s.get(link, 0.0)
    return beyond


#: A train that came at this share of TCP's pace, or faster, was paced by TCP. A train that came faster than TCP's pace
#: proves no queue: the pace in a train's head is up to 1.25 times too low, and without this, trains that TCP sent at 24
#: and 30 Mbit/s over a link of 30 counted as ones that met a full link.
HELD_BY_TCP = 0.85
#: A train that came this many times faster than TCP or the probe sent it had waited somewhere and arrived all at once,
#: and shows nothing: where a host caught up, a link of 30 Mbit/s passed 55.
RUSHED = 1.5
#: A probe met a full link if it left this many times faster than it came. A probe is sent much faster than the path
#: carried recently; on a busy host probes of 14 packets over a link of 13 Mbit/s left at 4.2 and came at 3.5.
SPREAD_OUT = 1.5
#: Where the edge's own transfers brought more than SHARED of a probe's bytes during the probe, both passed the link at
#: their common rate. That rate is only a lower bound, unless it is below FALLEN of every estimate on the way: over a
#: link of 30 Mbit/s a probe came at 24.5 beside a round's train of 9.6. A link that fell from 24 to 8 Mbit/s under a
#: round stayed at 24 for 3.9 s, while probes beside the round came at 7.5.
SHARED, FALLEN = 0.1, 0.75

#: While TCP starts, or starts again, as BBR does after it lost its model of the path (25 Mbit/s became 0.5, and 6 again
#: after 6 s), a train met a full link only if it came at less than the share BEGIN_HELD of TCP's pace: without this,
#: trains of 2 and 6 Mbit/s over a link of 17.8 counted as full. The first window is ten packets, which BBR sends at
#: BEGIN_GAIN windows a round trip; afterwards the pace grows by the factor DOUBLED.
BEGIN_BYTES, BEGIN_GAIN, BEGIN_HELD, DOUBLED = 10 * 1448, 2.89, 0.5, 1.9

#: Nor is a train paced by TCP that came after this many round trips without a pause, in which TCP's pace grew by less
#: than the factor MORE: BBR probes for a higher rate once in eight round trips.
LOOKED_TRIPS, MORE = 10, 1.1
#: The least pause of a sender that had nothing to send, in seconds; a transfer that is cut into trains has none.
PAUSE_S = 0.005

#: A link that carried this many times a train's rate at about the same time was not full. Trains of 64 KiB on links of
#: 5 to 40 Mbit/s lie within a tenth of each other. In a short train the factor is larger, for late stamps.
CLEARLY = 1.15
#: How late a stamp may be, which makes a short train look faster: three trains of 20 ms over a link of 200 Mbit/s came
#: at 212 to 214, and each time the link was probed for that during a round, which took 8 % longer.
LATE_S = 0.003
#: The distance in time that counts as about the same time, in seconds.
NEAR_S = 1.0
#: A link that carried this share of its estimated rate had next to no room. Behind sites' egresses of 10 to 24 Mbit/s,
#: links of 18 to 100 Mbit/s passed for full whenever an egress came a little short of its estimate: 8 to 39 % of all
#: estimates were far below the true rates, and with this 0 to 3 %.
NO_ROOM = 0.67
#: The rate of a link about a time is this quantile over its trains: the fastest may have a late stamp.
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
    """Return each link's rate samples, as the packet trains of all edges (pairs of members) show them.

    Args:
        trains: The new trains of each edge.
        routes: The links of each edge, in order.
        delay_s: The one-way delay of each link, in seconds.
        believed_bps: The estimated rate of each link, in bit/s.
        round_trip_s: The round trip of each edge, in seconds.
        trusted: Links that count as the full link of a train only where its route has no other links.
        before: Earlier trains of each edge, which may have shared links with the new ones.
        later: Later trains of each edge, which may have shared links with the new ones.
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
        adapted = _adapted(_by_tcp([*before.get(pair, ()), *its]), beginning)
        carried = Carried(_by_tcp([*its, *beside.get(pair, ())]))
        during = {train: _bytes_during(train, carried) for train in its if train.is_probe}
        shared = {
            train: size / train.seconds * FRAME_BITS for train, size in during.items() if size > SHARED * train.bytes
        }
        for number, train in enumerate(its):
            rates = {link: float(passed[pair, link][number]) for link in routes[pair]}
            middle_s = train.began_s + train.seconds / 2
            tells = train not in shared
            if not tells:
                together = {link: rate_bps + shared[train] for link, rate_bps in rates.items()}
                tells = all(together[link] < FALLEN * believed_bps[link] for link in doubted)
                rates = together if tells else rates
            full = None
            if tells and (_slowed(train, train in beginning) or train in looked or train in adapted):
                clearly = CLEARLY + LATE_S / train.seconds
                first = _perhaps_full(doubted, rates, believed_bps, clearly)
                left = [link for link in first if most[link].near(middle_s) <= clearly * rates[link]] or [
                    link for link in first if most[link].beside(middle_s) <= clearly * rates[link]
                ]
                full = min(left, key=lambda link: abs(log(rates[link] / believed_bps[link])), default=None)
            for link, rate_bps in rates.items():
                sample = Sample(rate_bps, train.began_s, train.seconds, train.bytes, link == full)
                found.setdefault(link, []).append(sample)
    return found


def _perhaps_full(
    links: Sequence[str], rates: Mapping[str, float], believed_bps: Mapping[str, float], clearly: float
) -> Sequence[str]:
    """Return the links of a route that may have been full, by the share of their estimated rates that they carried.

    These are the links up to the first that had next to no room. A link that carried `clearly` more than its estimated
    rate proves the estimate wrong: that link may be the full one, or one with room. Behind it, a link with much room
    is not full: nothing but the first link's wrong estimate speaks for it.
    """
    found: list[str] = []
    exceeded = False
    for link in links:
        share = rates[link] / believed_bps[link]
        if share >= NO_ROOM or not exceeded:
            found.append(link)
        if NO_ROOM <= share <= clearly:
            break
        exceeded |= share > clearly
    return found


def _by_tcp(trains: Sequence[Train]) -> list[Train]:
    return [train for train in trains if not train.is_probe]


def _rushed(train: Train) -> bool:
    most = max(train.allowed_bytes_s, train.burst_bytes_s)
    return bool(most) and train.bytes > RUSHED * most * train.seconds


def _slowed(train: Train, finding_pace: bool) -> bool:
    """Return whether a train arrived clearly slower than its sender would have sent it, so that the path held it up.

    A probe leaves at a known rate. TCP sends at most at the train's `allowed_bytes_s`; if it held nothing back (0), the
    path alone did. While TCP was `finding_pace`, the train counts only below a smaller share of it (BEGIN_HELD).
    """
    rate, allowed = train.bytes / train.seconds, train.allowed_bytes_s
    if train.is_probe:
        return SPREAD_OUT * rate <= allowed
    return not allowed or rate < (BEGIN_HELD if finding_pace else HELD_BY_TCP) * allowed


def _bytes_during(train: Train, carried: Carried) -> float:
    began, ended = carried.by(np.array([train.began_s, train.began_s + train.seconds]))
    return float(ended - began)


def _beginning(trains: Sequence[Train], round_trip_s: float) -> set[Train]:
    """Return the trains that came while TCP was finding its pace, at the start or again later.

    These are the trains of the first round trips, and the trains for which TCP's pace doubles within the next
    LOOKED_TRIPS or has doubled within the last, without a pause of more than a round trip.
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
        bursts = [train.burst_bytes_s for train in run]
        if DOUBLED * min(bursts) >= max(bursts):
            continue  # TCP's pace nowhere doubled in this run of trains
        firsts, lasts = (np.searchsorted(times_s, times_s + side * LOOKED_TRIPS * round_trip_s) for side in (-1, 1))
        for number, (first, last) in enumerate(zip(firsts.tolist(), lasts.tolist(), strict=True)):
            grew = min(bursts[first : number + 1]) * DOUBLED < bursts[number]
            if grew or max(bursts[number:last], default=0) > DOUBLED * bursts[number]:
                found.add(run[number])
    return found


def _unbroken(trains: Sequence[Train], pause_s: float = PAUSE_S) -> Iterator[list[Train]]:
    """Yield the trains in order, as lists between which there is a pause of more than `pause_s`."""
    run: list[Train] = []
    ended_s = 0.0
    for train in sorted(trains):
        if run and train.began_s - ended_s > pause_s:
            yield run
            run = []
        run.append(train)
        ended_s = max(ended_s, train.began_s + train.seconds)  # trains of several connections overlap
    if run:
        yield run


def _looked(trains: Sequence[Train], round_trip_s: float) -> set[Train]:
    """Return the trains before whose end TCP had looked for a higher rate, without a pause, and had found none."""
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


def _adapted(trains: Sequence[Train], beginning: Collection[Train]) -> set[Train]:
    """Return the trains paced by TCP at the rate of a train that met a full link, without a pause since then.

    TCP lowers its pace to the rate at which a full link delivers, and the link stays full. Without this, of ten trains
    over a link that fell from 31 to 6.1 Mbit/s one counted, and the fall was noticed after 3.3 s.
    """
    found: set[Train] = set()
    for run in _unbroken(trains):
        full_bytes_s = 0.0
        for train in run:
            rate = train.bytes / train.seconds
            if _slowed(train, train in beginning):
                full_bytes_s = rate
            elif full_bytes_s and abs(log(rate / full_bytes_s)) <= log(MORE):
                found.add(train)
            else:
                full_bytes_s = 0.0
    return found


class _Most:
    """The highest rate of a link about a time, by the trains that passed it."""

    def __init__(self, parts: Sequence[tuple[Floats, Floats, Floats]]) -> None:
        middles_s, rates_bps, sizes = (np.concatenate(part) for part in zip(*parts, strict=True))
        order = np.argsort(rates_bps)  # once, for many queries
        self._middles_s, self._rates_bps, self._bytes = middles_s[order], rates_bps[order], sizes[order]

    def near(self, at_s: float) -> float:
        """Return the rate within NEAR_S of a time, in bit/s."""
        near = np.abs(self._middles_s - at_s) <= NEAR_S
        return self._quantile(near)

    def beside(self, at_s: float) -> float:
        """Return the lower of the rates within NEAR_S before and after the middle of a train, in bit/s.

        A link whose rate fell or rose at that time carried more on one side only. A side without another train is left
        out.
        """
        before = (self._middles_s >= at_s - NEAR_S) & (self._middles_s <= at_s)
        after = (self._middles_s >= at_s) & (self._middles_s <= at_s + NEAR_S)
        sides = [side for side in (before, after) if side.sum() > 1] or [before]
        return min(map(self._quantile, sides))

    def _quantile(self, chosen: NDArray[np.bool_]) -> float:
        """Return the rate at QUANTILE of the chosen trains, weighted by their bytes; 0 without trains."""
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
