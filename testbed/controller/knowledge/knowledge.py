"""The controller's knowledge of the network: the declared view, corrected by the members' own transfers.

    trains over each edge --bottleneck--> the rate of each link meanwhile --estimate--> a rate and an age for each link

A train is a run of packets that arrived back to back, in a round or in a probe. A link is known while the trains that
filled it are recent. Afterwards the link is unknown: the last estimate stands in for FORGOTTEN_S, and then the declared
rate. A link that no train filled has its estimated or declared rate, or the rate that it was seen to carry if that is
higher; on routes over several links, members' access links count as not filled. An edge without a known route is a
capacity of its own.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from math import hypot
from typing import Literal, NamedTuple

from testbed.plan import Plan
from testbed.planning import Edge, Member, Pair, PhysicalLink, View
from testbed.planning.cost import CostModel
from testbed.protocol import PeerSample, Train
from testbed.telemetry.bottleneck import samples as samples_of
from testbed.telemetry.estimate import UNKNOWN_DOUBT, Estimate, PastRate, RateEstimator, RateHistory, RateVariation

#: Seconds after which the declared rate of an unknown link counts again.
FORGOTTEN_S = 60.0

#: Unmeasured trains that are kept of each edge during a round. They last for minutes; the newest ones suffice.
KEPT_TRAINS = 10_000

#: New trains are compared with measured trains of the last 5 s: ten round trips of 0.5 s, in which TCP grows.
BEFORE_S = 5.0

#: A link fell if its rate is below this part of its rate at the end of the last round.
FELL = 0.75

#: Two times of evidence that differ by less than this many seconds are the same, but for rounding.
SAME_S = 1e-3

#: A link was not measured well if the upper limit of its rate is more than SURE times the lower limit.
SURE = 2.0

#: A round does not depend on a link that is busy for less than this part of the round. On the quickstart the busiest
#: link takes 0.31 s of a simulated round of 0.60 s. A round gets 12 % longer where that link carries a fifth less, but
#: at most 2 % longer where one of the other links does, which are busy for 0.24 s or less.
CRITICAL = 0.5

#: The least round trip is taken over this many samples. Fewer would take a queue for distance; more would keep an old
#: route's round trip for long.
RTT_SAMPLES = 10

#: The kernel reports the least round trip of this many seconds (its default; net.ipv4.tcp_min_rtt_wlen). For that long
#: after a path changed, a round trip below the declared one may be the old path's.
MIN_RTT_WINDOW_S = 300.0


@dataclass(frozen=True, slots=True)
class PastNetwork:
    """The network in a past interval: each link's median rate then, and how far its rate moved meanwhile."""

    #: The view, whose links have their median rates of that time.
    view: View
    #: The rates of that time, by link.
    rates: Mapping[str, PastRate]
    #: Links whose rate in the view is taken as it is.
    trusted: Collection[str]

    def rate_movement(self, plan: Plan, whole_s: float) -> float | None:
        """Return how far a rate moved in the interval, at most, among the links on which the plan's rounds depend.

        A round does not depend on a link that needs less than CRITICAL of it for the plan's bytes, even at the link's
        lowest rate.

        Args:
            plan: The plan that was in force.
            whole_s: The length of a round in seconds.

        Returns:
            The largest logarithm of a link's highest over its lowest rate; None while one of these rates is not known.
        """
        most = 0.0
        for name, drain_s in CostModel(self.view).drains(plan).items():
            past = self.rates.get(name)
            if name in self.trusted or drain_s * (past.rate_bps / past.low_bps if past else 1.0) < CRITICAL * whole_s:
                continue
            if past is None or not past.known:
                return None
            most = max(most, math.log(past.high_bps / past.low_bps))
        return most


class RoundTrips:
    """The least measured round trip of each edge since its path last changed.

    A path is the way there and back, so a change of either way changes the path of both edges.
    """

    def __init__(self) -> None:
        self._seen: dict[Pair, deque[float]] = {}
        self._redeclared_s: dict[Pair, float] = {}

    def redeclare(self, pair: Pair, now_s: float) -> None:
        """Record that the path between two members changed, and forget its round trips."""
        for edge in (pair, pair[::-1]):  # the way back is part of the round trip
            self._seen.pop(edge, None)
            self._redeclared_s[edge] = now_s

    def add(self, pair: Pair, rtt_s: float, declared_s: float, now_s: float) -> None:
        """Add a measured round trip, raised to the declared one while the kernel may report the old path's."""
        if now_s - self.since_s(pair) <= MIN_RTT_WINDOW_S:
            rtt_s = max(rtt_s, declared_s)
        self._seen.setdefault(pair, deque(maxlen=RTT_SAMPLES)).append(rtt_s)

    def least_s(self, pair: Pair, declared_s: float) -> float:
        """Return the least of the newest round trips, or the declared one before any sample."""
        return min(self._seen.get(pair, ()), default=declared_s)

    def since_s(self, pair: Pair) -> float:
        """Return when the path last changed (Unix time), or minus infinity if it never did."""
        return self._redeclared_s.get(pair, -math.inf)


class _Suspicion(NamedTuple):
    """That a link fell, because the opposite direction of its path did."""

    #: The assumed rate in bit/s.
    rate_bps: float
    #: The time of the link's newest evidence, and of the first train that showed the fall (Unix time).
    evidence_s: float
    fell_s: float


class Knowledge:
    """The declared view and the measurements since; makes the views that policies plan by.

    It takes the members' transfers during rounds and after each one. Where the declared view's `knowledge`
    is not "measured", views keep the declared values, and no link falls, is in doubt or unknown; `estimates` has the
    measured values all the same. Times are Unix time in seconds. A link's name is `a->b`, or `u=>v` for an edge that is
    a capacity of its own.
    """

    def __init__(self, declared: View) -> None:
        self._declared = declared
        self._access = _access_links(declared.members)
        self._rates: dict[str, RateEstimator] = {}
        self._history: dict[str, RateHistory] = {}
        self._at_round_end: dict[str, Estimate] = {}  # as the last round ended
        self._variation: dict[str, RateVariation] = {}  # over the rounds before
        self._suspected: dict[str, _Suspicion] = {}
        self._round_trips = RoundTrips()
        self._speeds: dict[str, float] = {}
        self._measured: dict[Pair, list[Train]] = {}  # of the last BEFORE_S
        self._unmeasured: dict[Pair, list[Train]] = {}
        self._newest_s = -math.inf  # when the newest train of the last round began

    def redeclare(
        self,
        links: Mapping[str, PhysicalLink],
        routes: Mapping[Pair, tuple[str, ...]],
        now_s: float,
        members: tuple[Member, ...] | None = None,
    ) -> Literal["none", "rates", "routes"]:
        """Replace the declared network, and forget the measurements over links and routes that changed.

        Args:
            links: The links of the network.
            routes: The links of each edge.
            now_s: The time of the change.
            members: The members, or None if they stay.

        Returns:
            What has changed: nothing, only links' rates and delays, or also routes, members, or which links are up.

        Raises:
            ViewError: the declaration contradicts itself.
        """
        old = self._declared
        changed = {name for name in {*links, *old.links} if links.get(name) != old.links.get(name)}
        there = old.members if members is None else members
        self._declared = View.of_network(there, links, routes, old.model_bytes, now_s, old.knowledge)
        self._access = _access_links(there)
        for name in changed:
            for known in (self._rates, self._history, self._at_round_end, self._variation, self._suspected):
                known.pop(name, None)
        for pair in {*old.routes, *routes}:
            route = routes.get(pair, ())
            gone = pair not in self._declared.edges  # also where only the way back is down
            if gone or route != old.routes.get(pair, ()) or changed.intersection(route):
                self._measured.pop(pair, None)
                self._unmeasured.pop(pair, None)
                self._round_trips.redeclare(pair, now_s)
        up, was_up = ({name for name, link in its.items() if link.up} for its in (links, old.links))
        if (up, dict(routes), there) != (was_up, dict(old.routes), old.members):
            return "routes"
        return "rates" if changed else "none"

    def observe(
        self, samples: Mapping[Pair, PeerSample], arrivals: Mapping[Pair, Sequence[Train]], now_s: float
    ) -> None:
        """Add a completed round's transfers, and measure links by them.

        Args:
            samples: The sender's sample of each edge.
            arrivals: The receiver's trains of each edge.
            now_s: The time.
        """
        newest_s = max((train.began_s for came in arrivals.values() for train in came), default=self._newest_s)
        if newest_s < self._newest_s - FORGOTTEN_S:
            self._forget_earlier_clocks()
        self._newest_s = newest_s
        for pair, sample in samples.items():
            if pair in self._declared.edges and sample.rtt_s > 0:
                self._round_trips.add(pair, sample.rtt_s, self._declared.edges[pair].rtt_s, now_s)
        self.add_trains(arrivals)
        self.measure()

    def _forget_earlier_clocks(self) -> None:
        """Forget all measurements: the members' clocks were set back, so these measurements seem to be of the future.

        Until the clocks reach these moments again, an unused link would count as just measured, and be probed by
        nobody. Clocks that were set back by less than FORGOTTEN_S reach these moments within that time.
        """
        for known in (self._rates, self._history, self._at_round_end, self._variation, self._suspected):
            known.clear()
        self._measured.clear()
        self._unmeasured.clear()
        self._round_trips = RoundTrips()

    def add_trains(self, arrivals: Mapping[Pair, Sequence[Train]]) -> None:
        """Keep the trains that arrived so far in the current round until `measure` is called."""
        for pair, came in arrivals.items():
            if pair in self._declared.edges:
                since_s = self._round_trips.since_s(pair)  # earlier trains used other links
                trains = self._unmeasured.setdefault(pair, [])
                trains.extend(train for train in came if train.began_s >= since_s)
                del trains[:-KEPT_TRAINS]

    def measure(self, until_s: float = math.inf) -> None:
        """Measure links by the kept trains that began by `until_s`; all trains that overlap with them must be kept."""
        due, later = _split(self._unmeasured, lambda train: train.began_s <= until_s)
        self._measure(due, later)
        self._unmeasured = later

    def round_over(self, now_s: float) -> None:
        """Keep the present estimates: `fell` compares later ones with them, and views with their variation."""
        self._suspected = self._suspects(now_s)
        self._at_round_end = self.estimates(now_s)
        for name, estimate in self._at_round_end.items():
            if estimate.known:
                self._variation.setdefault(name, RateVariation()).add(estimate, now_s)

    def add_speeds(self, speeds: Mapping[str, float]) -> None:
        """Add the members' computing speeds in a round, as fractions of their declared speeds.

        A speed is averaged with the one believed before, so that a single late step does not change plans.
        """
        for member, speed in speeds.items():
            self._speeds[member] = (self._speeds.get(member, speed) + speed) / 2

    def view(self, now_s: float) -> View:
        """Return the network as it is known now.

        Links have their estimated rates, edges the age of the estimate behind their rate, members their speeds.
        """
        estimates = self._expected(now_s) if self._declared.knowledge == "measured" else {}
        links = {
            name: replace(link, rate_bps=_rate(estimates.get(name), link.rate_bps))
            for name, link in self._declared.links.items()
        }
        edges = {pair: self._edge(pair, links, estimates) for pair in self._declared.edges}
        members = self._declared.members
        if self._declared.knowledge == "measured":
            members = tuple(replace(one, speed=one.speed * self._speeds.get(one.name, 1.0)) for one in members)
        return replace(self._declared, members=members, links=links, edges=edges, at_s=now_s)

    def past_network(self, began_s: float, ended_s: float, now_s: float) -> PastNetwork:
        """Return the network between two past moments, by the trains before, between and after them.

        A link that no train ever filled has its present rate.
        """
        view = self.view(now_s)
        if self._declared.knowledge != "measured":
            return PastNetwork(view, {}, {*view.links})
        found = {name: history.between(began_s, ended_s) for name, history in self._history.items()}
        rates = {name: past for name, past in found.items() if past is not None}
        believed_bps = {name: link.rate_bps for name, link in view.links.items()}
        believed_bps |= {f"{u}=>{v}": edge.rate_bps for (u, v), edge in view.edges.items()}
        factors = {name: past.rate_bps / believed_bps[name] for name, past in rates.items() if name in believed_bps}
        return PastNetwork(view.scaled(factors), rates, self._access)

    def estimates(self, now_s: float) -> dict[str, Estimate]:
        """Return the present estimate of each measured link."""
        found = {name: estimator.estimate(now_s) for name, estimator in self._rates.items()}
        return {name: estimate for name, estimate in found.items() if estimate is not None}

    def fell(self, now_s: float) -> dict[str, float]:
        """Return the links whose rate fell since the last round ended, with the part of that rate that is left."""
        before = self._at_round_end if self._declared.knowledge == "measured" else {}
        return {
            name: part
            for name, estimate in self.estimates(now_s).items()
            if name in before and (part := estimate.rate_bps / before[name].rate_bps) < FELL
        }

    def doubts(self, now_s: float) -> dict[str, tuple[float, float]]:
        """Return how far off each link's rate may be, below and above: standard deviations of the rate's logarithm.

        Access links that no train filled are left out.
        """
        if self._declared.knowledge != "measured":
            return {}
        estimates = self.estimates(now_s)
        names = {name for pair in self._declared.edges for name in self.route(pair) if name not in self._access}
        found = {}
        for name in names | estimates.keys():
            below, above = estimates[name].doubt() if name in estimates else (UNKNOWN_DOUBT, UNKNOWN_DOUBT)
            drift = min(self._variation[name].drift, UNKNOWN_DOUBT) if name in self._variation else 0.0
            found[name] = hypot(below, drift), hypot(above, drift)
        return found

    def contradicted(self) -> set[str]:
        """Return the links whose estimate is unsure, or contradicted by the newest train."""
        return {name for name, estimator in self._rates.items() if estimator.contradicted}

    def measured_ago(self, now_s: float) -> dict[str, tuple[float, list[Pair]]]:
        """Return, for each link between sites, the seconds since it was measured well, and the edges that use it.

        The seconds are infinite for a link that was never measured, is suspected to have fallen, or has an estimate
        that is not sure. Members' access links are left out. Where the declared view's `knowledge` is not `measured`,
        the result is empty.
        """
        if self._declared.knowledge != "measured":
            return {}
        sure = {name: its.age_s for name, its in self.estimates(now_s).items() if its.high_bps <= SURE * its.low_bps}
        for name in self._suspects(now_s):
            sure.pop(name, None)
        found: dict[str, tuple[float, list[Pair]]] = {}
        for pair in self._declared.edges:
            for name in self.route(pair):
                if name not in self._access:
                    found.setdefault(name, (sure.get(name, math.inf), []))[1].append(pair)
        return found

    def route(self, pair: Pair) -> tuple[str, ...]:
        """Return the links of an edge, or a single capacity of its own where its route is not known."""
        return self._declared.routes.get(pair) or (f"{pair[0]}=>{pair[1]}",)

    def _measure(self, trains: Mapping[Pair, Sequence[Train]], later: Mapping[Pair, Sequence[Train]]) -> None:
        routes = {pair: self.route(pair) for pair in {*trains, *later, *self._measured}}
        newest_s = max((its[-1].began_s for its in trains.values()), default=0.0)
        estimates = self.estimates(newest_s)
        believed = {
            name: _rate(estimates.get(name), self._declared_bps(pair, name))
            for pair, route in routes.items()
            for name in route
        }
        delay_s = {name: link.delay_s for name, link in self._declared.links.items()}
        round_trip_s = {pair: self._round_trips.least_s(pair, self._declared.edges[pair].rtt_s) for pair in routes}
        found = samples_of(trains, routes, delay_s, believed, round_trip_s, self._access, self._measured, later)
        for name, its in found.items():
            self._rates.setdefault(name, RateEstimator(believed[name])).add(its)
            self._history.setdefault(name, RateHistory()).add(its)
        kept = {pair: [*self._measured.get(pair, ()), *trains.get(pair, ())] for pair in {*self._measured, *trains}}
        self._measured, _ = _split(kept, lambda train: train.began_s >= newest_s - BEFORE_S)

    def _expected(self, now_s: float) -> dict[str, Estimate]:
        """Return the estimates with the rates to expect for the next rounds."""
        expected, suspected = self.estimates(now_s), self._suspects(now_s)
        for name, its in expected.items():
            if name in suspected:
                its = replace(its, rate_bps=suspected[name].rate_bps)
            if name in self._variation:
                its = replace(its, rate_bps=self._variation[name].expected_bps(its))
            expected[name] = its
        return expected

    def _suspects(self, now_s: float) -> dict[str, _Suspicion]:
        """Return the links that are assumed to have fallen because the opposite direction of their path fell.

        A round sends its updates before its means, so a fall shows first in the direction of the updates. A plan that
        avoided only that direction would send its means over the other one. A link is suspected until it was measured
        since the fall and its newest train was as fast as before, or until a train that came after the fall proves that
        the link carries more than the assumed rate. A slow newest train proves no fall by itself, but the suspicion
        stays: the faster trains before it may have been sent before the link fell.
        """
        estimates = self.estimates(now_s)
        found = {
            name: suspicion
            for name, suspicion in self._suspected.items()
            if name in estimates and abs(now_s - estimates[name].age_s - suspicion.evidence_s) < SAME_S
        }
        fell = self.fell(now_s)
        for name, part in fell.items():
            slow_for_s = estimates[name].age_s + estimates[name].over_s
            for back in self._opposite_links(name) - fell.keys() - found.keys():
                its = estimates.get(back)
                if its and (its.age_s >= slow_for_s or self._rates[back].newest_bps < math.sqrt(part) * its.rate_bps):
                    found[back] = _Suspicion(its.rate_bps * part, now_s - its.age_s, now_s - slow_for_s)
        return {
            name: suspicion
            for name, suspicion in found.items()
            if not self._rates[name].exceeds(suspicion.rate_bps, suspicion.fell_s)
        }

    def _opposite_links(self, name: str) -> set[str]:
        """Return the links opposite to this one on paths whose way back has as many links as the way there."""
        found = set()
        for pair in self._declared.edges:
            there, back = self.route(pair), self.route(pair[::-1])
            if name in there and len(there) == len(back):
                found.add(back[-1 - there.index(name)])
        return found

    def _edge(self, pair: Pair, links: Mapping[str, PhysicalLink], estimates: Mapping[str, Estimate]) -> Edge:
        """Return an edge over the known `links`. Its slowest link decides its rate, source and age."""
        declared = self._declared.edges[pair]
        rates = {
            name: links[name].rate_bps if name in links else _rate(estimates.get(name), declared.rate_bps)
            for name in self.route(pair)
        }
        slowest = min(rates, key=lambda name: rates[name])
        estimate = estimates.get(slowest)
        rtt_s = declared.rtt_s
        if self._declared.knowledge == "measured":
            rtt_s = self._round_trips.least_s(pair, rtt_s)
        if estimate is None or estimate.age_s > FORGOTTEN_S:
            return Edge(rates[slowest], rtt_s)
        return Edge(rates[slowest], rtt_s, estimate.age_s, "measured" if estimate.known else "unknown")

    def _declared_bps(self, pair: Pair, name: str) -> float:
        link = self._declared.links.get(name)
        return link.rate_bps if link else self._declared.edges[pair].rate_bps


def _access_links(members: Sequence[Member]) -> set[str]:
    return {name for member in members for name in (member.uplink, member.downlink)}


def _split(
    trains: Mapping[Pair, Sequence[Train]], chosen: Callable[[Train], bool]
) -> tuple[dict[Pair, list[Train]], dict[Pair, list[Train]]]:
    """Return the chosen trains and the others; edges without trains are left out of either."""
    found: tuple[dict[Pair, list[Train]], dict[Pair, list[Train]]] = ({}, {})
    for pair, its in trains.items():
        for train in its:
            found[not chosen(train)].setdefault(pair, []).append(train)
    return found


def _rate(estimate: Estimate | None, declared_bps: float) -> float:
    return estimate.rate_bps if estimate is not None and estimate.age_s <= FORGOTTEN_S else declared_bps
