"""What the controller knows of the network: the declared view, corrected by the members' own transfers.

    trains over each edge --bottleneck--> what each link carried meanwhile --estimate--> a rate and an age for each link

A link is known while trains that filled it are recent: those of rounds, and of probes, which go where no plan does.
After that it is unknown: the last estimate stands in for it, and after FORGOTTEN_S what was declared. Links that no
train filled carry what was estimated or declared, or what they were seen to carry if that is more; members' access
links are such where a route has others too. Where routes are not known, each edge is a capacity of its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from math import hypot

from testbed.controller.knowledge.round_trips import RoundTrips
from testbed.plan import Plan
from testbed.planning import Edge, Member, Pair, PhysicalLink, View
from testbed.planning.cost import CostModel
from testbed.protocol import PeerSample, Train
from testbed.telemetry.bottleneck import samples as samples_of
from testbed.telemetry.estimate import UNKNOWN_DOUBT, Estimate, RateEstimator
from testbed.telemetry.rate_history import PastRate, RateHistory, RateVariation

#: Seconds after which an unknown link is taken for what was declared.
FORGOTTEN_S = 60.0

#: Trains of an edge that are kept while a round takes long: minutes of them. Of more the newest say enough.
KEPT_TRAINS = 10_000

#: Measured trains that what comes is held against reach back so far: ten round trips, over which TCP grows, of 0.5 s.
BEFORE_S = 5.0

#: A link fell if it carries less than this part of what it did.
FELL = 0.75

#: Evidence is the same if it is of the same time, but for rounding.
SAME_S = 1e-3

#: What was measured so long ago is worth a probe, and so is what may carry so many times as much as it may also carry.
FRESH_S, SURE = 3.0, 2.0

#: A round does not depend on a link that is busy for less than this part of it. On the quickstart the busiest link
#: takes 0.31 s of a simulated round of 0.60 s, and rounds get 12 % longer where that link carries a fifth less, but 2 %
#: at most where one of the others does, which are busy for 0.24 s or less.
CRITICAL = 0.5


@dataclass(frozen=True, slots=True)
class Hindsight:
    """The network in a past stretch of time: a `view` with the `rates` that links had then.

    Links that are `trusted` have the rate of the view.
    """

    view: View
    rates: Mapping[str, PastRate]
    trusted: Collection[str]

    def moved(self, plan: Plan, whole_s: float) -> float | None:
        """Return the logarithm by which the rate of a link moved most meanwhile, of those on which rounds depend.

        A link that needs less than CRITICAL of a round of `whole_s` for what the plan puts on it is none of them, even
        at its lowest rate. None where it is not known yet what one of the others carried.
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


class Knowledge:
    """The declared view and what was measured since. Fed after each round, and while one lasts; gives views."""

    def __init__(self, declared: View) -> None:
        self._declared = declared
        self._access = _access_links(declared.members)
        self._rates: dict[str, RateEstimator] = {}
        self._history: dict[str, RateHistory] = {}
        self._at_end: dict[str, Estimate] = {}
        self._before: dict[str, RateVariation] = {}
        self._suspected: dict[str, tuple[float, float]] = {}
        self._round_trips = RoundTrips()
        self._speeds: dict[str, float] = {}
        self._measured: dict[Pair, list[Train]] = {}  # the newest of them
        self._unmeasured: dict[Pair, list[Train]] = {}

    def redeclare(
        self,
        links: Mapping[str, PhysicalLink],
        routes: Mapping[Pair, tuple[str, ...]],
        now_s: float,
        members: tuple[Member, ...] | None = None,
    ) -> None:
        """Another network is declared, perhaps of other `members`: forget what was measured over links or routes that
        changed."""
        old = self._declared
        changed = {name for name in {*links, *old.links} if links.get(name) != old.links.get(name)}
        there = old.members if members is None else members
        self._declared = View.of_network(there, links, routes, old.model_bytes, now_s, old.knowledge)
        self._access = _access_links(there)
        for name in changed:
            self._rates.pop(name, None)
            self._history.pop(name, None)
            self._at_end.pop(name, None)
            self._before.pop(name, None)
            self._suspected.pop(name, None)
        for pair in {*old.routes, *routes}:
            route = routes.get(pair, ())
            if route != old.routes.get(pair, ()) or changed.intersection(route):
                self._measured.pop(pair, None)
                self._unmeasured.pop(pair, None)
                self._round_trips.redeclare(pair, now_s)

    def observe(
        self, samples: Mapping[Pair, PeerSample], arrivals: Mapping[Pair, Sequence[Train]], now_s: float
    ) -> None:
        """Take the transfers of a round that is over: by edge, as its sender and as its receiver saw them."""
        for pair, sample in samples.items():
            if pair in self._declared.edges and sample.rtt_s > 0:
                self._round_trips.add(pair, sample.rtt_s, self._declared.edges[pair].rtt_s, now_s)
        self.take(arrivals)
        self.measure()

    def take(self, arrivals: Mapping[Pair, Sequence[Train]]) -> None:
        """Take what came in so far in a round that is on, for when it is measured."""
        for pair, came in arrivals.items():
            if pair in self._declared.edges:
                since_s = self._round_trips.since_s(pair)  # what came before went over other links
                trains = self._unmeasured.setdefault(pair, [])
                trains.extend(train for train in came if train.began_s >= since_s)
                del trains[:-KEPT_TRAINS]

    def measure(self, until_s: float = math.inf) -> None:
        """Measure links by the trains that began by then: what else passed them meanwhile was taken too."""
        due, later = _parted(self._unmeasured, lambda train: train.began_s <= until_s)
        self._measure(due, later)
        self._unmeasured = later

    def round_over(self, now_s: float) -> None:
        """What is known by now is what links are held to have carried before they `fell`."""
        self._suspected = self._suspects(now_s)
        self._at_end = self.estimates(now_s)
        for name, estimate in self._at_end.items():
            if estimate.known:
                self._before.setdefault(name, RateVariation()).add(estimate, now_s)

    def clock(self, speeds: Mapping[str, float]) -> None:
        """Take how fast members computed in a round, as parts of what is declared. Rounds differ by a late step, and
        plans are not to change for that: the mean with the round before."""
        for member, speed in speeds.items():
            self._speeds[member] = (self._speeds.get(member, speed) + speed) / 2

    def view(self, now_s: float) -> View:
        """What is known now: links as estimated, edges with the age of the estimate behind them, members' speeds."""
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

    def hindsight(self, began_s: float, ended_s: float, now_s: float) -> Hindsight:
        """Return the network between two moments that are past, by what came before, meanwhile and since.

        A link that no train ever filled has the rate that is believed of it now.
        """
        view = self.view(now_s)
        if self._declared.knowledge != "measured":
            return Hindsight(view, {}, {*view.links})
        found = {name: history.between(began_s, ended_s) for name, history in self._history.items()}
        rates = {name: past for name, past in found.items() if past is not None}
        believed_bps = {name: link.rate_bps for name, link in view.links.items()}
        believed_bps |= {f"{u}=>{v}": edge.rate_bps for (u, v), edge in view.edges.items()}
        factors = {name: past.rate_bps / believed_bps[name] for name, past in rates.items() if name in believed_bps}
        return Hindsight(view.scaled(factors), rates, self._access)

    def estimates(self, now_s: float) -> dict[str, Estimate]:
        """What was measured, by link (`u=>v` where an edge is one of its own)."""
        found = {name: estimator.estimate(now_s) for name, estimator in self._rates.items()}
        return {name: estimate for name, estimate in found.items() if estimate is not None}

    def fell(self, now_s: float) -> dict[str, float]:
        """The links that carry much less than they did when a round was over last: what part of it. Nothing where
        nothing is measured."""
        before = self._at_end if self._declared.knowledge == "measured" else {}
        parts = {
            name: estimate.rate_bps / before[name].rate_bps
            for name, estimate in self.estimates(now_s).items()
            if name in before
        }
        return {name: part for name, part in parts.items() if part < FELL}

    def doubts(self, now_s: float) -> dict[str, tuple[float, float]]:
        """How far off links may be, as `Estimate.doubt` has it: nothing where nothing is measured, and of access links
        that no train filled."""
        if self._declared.knowledge != "measured":
            return {}
        estimates = self.estimates(now_s)
        names = {name for pair in self._declared.edges for name in self.route(pair) if name not in self._access}
        found = {}
        for name in names | estimates.keys():
            below, above = estimates[name].doubt() if name in estimates else (UNKNOWN_DOUBT, UNKNOWN_DOUBT)
            drift = min(self._before[name].drift, UNKNOWN_DOUBT) if name in self._before else 0.0
            found[name] = hypot(below, drift), hypot(above, drift)
        return found

    def unknown(self, now_s: float, fresh_s: float = FRESH_S) -> dict[str, list[Pair]]:
        """Each capacity that was not measured well in the last `fresh_s`, with the edges that use it: nothing where
        nothing is measured.

        Members' own access links are none of them: it is what lies between sites that is in doubt.
        """
        if self._declared.knowledge != "measured":
            return {}
        sure = {name for name, its in self.estimates(now_s).items() if its.age_s <= fresh_s and _is_sure(its)}
        known = sure - self._suspects(now_s).keys()
        users: dict[str, list[Pair]] = {}
        for pair in self._declared.edges:
            for name in self.route(pair):
                if name not in known and name not in self._access:
                    users.setdefault(name, []).append(pair)
        return users

    def route(self, pair: Pair) -> tuple[str, ...]:
        """The links of an edge; where they are not known it is a capacity of its own."""
        return self._declared.routes.get(pair) or (f"{pair[0]}=>{pair[1]}",)

    def _measure(self, trains: Mapping[Pair, Sequence[Train]], later: Mapping[Pair, Sequence[Train]]) -> None:
        routes = {pair: self.route(pair) for pair in {*trains, *later, *self._measured}}
        newest_s = max((its[-1].began_s for its in trains.values() if its), default=0.0)
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
        self._measured, _ = _parted(kept, lambda train: train.began_s >= newest_s - BEFORE_S)

    def _expected(self, now_s: float) -> dict[str, Estimate]:
        """What links are expected to carry for a while."""
        estimates = self._either_way(self.estimates(now_s), now_s)
        return {
            name: replace(its, rate_bps=self._before[name].expected_bps(its)) if name in self._before else its
            for name, its in estimates.items()
        }

    def _either_way(self, estimates: dict[str, Estimate], now_s: float) -> dict[str, Estimate]:
        suspected = self._suspects(now_s)
        return {
            name: replace(its, rate_bps=suspected[name][0]) if name in suspected else its
            for name, its in estimates.items()
        }

    def _suspects(self, now_s: float) -> dict[str, tuple[float, float]]:
        """Links that are taken to have fallen since the way back did: to how much, and when their newest evidence was.

        That is so until they were measured since, and their newest train came as fast as before: updates come first,
        and a plan that left one way alone sent its means the other. A slow train proves nothing by itself, but what
        came before it may have been on its way as the link fell.
        """
        estimates = self.estimates(now_s)
        found = {
            name: (rate_bps, at_s)
            for name, (rate_bps, at_s) in self._suspected.items()
            if name in estimates and abs(now_s - estimates[name].age_s - at_s) < SAME_S
        }
        fell = self.fell(now_s)
        for name, part in fell.items():
            slow_for_s = estimates[name].age_s + estimates[name].over_s
            for back in self._ways_back(name) - fell.keys() - found.keys():
                its = estimates.get(back)
                if its and (its.age_s >= slow_for_s or self._rates[back].newest_bps < math.sqrt(part) * its.rate_bps):
                    found[back] = its.rate_bps * part, now_s - its.age_s
        return found

    def _ways_back(self, name: str) -> set[str]:
        """The links that paths take back where they took this one there, if they go the same way."""
        found = set()
        for pair in self._declared.edges:
            there, back = self.route(pair), self.route(pair[::-1])
            if name in there and len(there) == len(back):
                found.add(back[-1 - there.index(name)])
        return found

    def _edge(self, pair: Pair, links: Mapping[str, PhysicalLink], estimates: Mapping[str, Estimate]) -> Edge:
        """An edge over `links` as they are known. Its slowest one says whether it is."""
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


def _parted(
    trains: Mapping[Pair, Sequence[Train]], chosen: Callable[[Train], bool]
) -> tuple[dict[Pair, list[Train]], dict[Pair, list[Train]]]:
    """Those that are chosen, and the others; an edge that has none is left out."""
    found: tuple[dict[Pair, list[Train]], dict[Pair, list[Train]]] = ({}, {})
    for pair, its in trains.items():
        for train in its:
            found[not chosen(train)].setdefault(pair, []).append(train)
    return found


def _is_sure(estimate: Estimate) -> bool:
    """Whether it was measured well."""
    return estimate.high_bps <= SURE * estimate.low_bps


def _rate(estimate: Estimate | None, declared_bps: float) -> float:
    return estimate.rate_bps if estimate is not None and estimate.age_s <= FORGOTTEN_S else declared_bps
