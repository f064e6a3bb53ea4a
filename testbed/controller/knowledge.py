"""What the controller knows of the network: the declared view, corrected by the members' own transfers.

A transfer's throughput must not be taken for a link's rate. It shares links with other edges; a small slice never
leaves slow start; and a relay that gets its data in driblets looks busy and slow over an idle path. So nothing is
concluded from an edge's speed as such. What a round should have taken is compared with what it took, and a link is
corrected only to explain time that was really lost. With

    drain_l   8·bytes over l / goodput_l, for the plan in force and the believed rates; T = max over l
    o_f       the overhead of edge f: how much longer than T it used to be busy (round trips, slow start, hosts)

an edge f is slow in a round when busy_f > SLOWER·(T + o_f) + HOST_NOISE_S. o_f is learned from earlier rounds with
the same T, so a constant network, however far from its declared rates' ideal, explains itself; it is never more
than what slow start over f's round trip takes, which also stands in for it until it is learned, so a link that was
far below its declared rate from the beginning is found out.

Of the edges that are slow in CONFIRMATIONS rounds running, one is blamed: not one that is fed by another slow edge
of the same tree (it only waits for that), and of the others the one whose correction is the least. On its route
the links are acquitted that another edge used in that time without being slow itself; of the rest the fullest one
is believed to have had drain = busy_f − o_f. T grows by that; edges that are slow still are looked at again. A link
believed slow is believed as declared again when a round over it is quicker than the belief allows, or when nothing
has been heard of it for long, the patience doubling each time it then turns out to be slow after all. So a wrong
guess costs a swap or two, and a constant network brings at most a logarithm of them.

A drop that makes no round longer goes unseen, and rightly: nothing would be gained by knowing it. A link of no
edge in use is known as declared: there is no exploration yet.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, replace
from statistics import median

from testbed.link import TCP_PAYLOAD_BYTES
from testbed.plan import Plan
from testbed.planning import CostModel, Edge, Pair, PhysicalLink, View
from testbed.planning.constraints import GOODPUT, Constraints
from testbed.protocol import PeerSample
from testbed.telemetry.estimate import EdgeEstimator, Estimate

#: Lost time below this factor is noise: a host that is shared makes some rounds longer than others.
SLOWER = 1.5

#: A round this many times shorter than the belief in a slow link allows disproves it.
FASTER = 1.25

#: Rounds running that must agree.
CONFIRMATIONS = 2

#: A sample counts when at least this part of the bytes that the plan puts on the edge were sent: less says little.
WHOLE = 0.5

#: Overheads remembered for each edge; their median counts.
OVERHEADS = 15

#: Segments of the window that a TCP connection starts with, and again after it was idle.
INITIAL_WINDOW = 10

#: Seconds that are never called lost: stalls of a host whose cores the members share.
HOST_NOISE_S = 0.05

#: Seconds after which a silent edge is unknown and an unused slow link is believed as declared again.
SILENCE_S = 60.0

#: The kernel's least round trip is over so long (its default; net.ipv4.tcp_min_rtt_wlen): for that time after a path
#: became another one, what is less than the declared round trip may be that of the old path.
MIN_RTT_WINDOW_S = 300.0


@dataclass(slots=True)
class _Belief:
    """A capacity's rate (bit/s of frames) that differs from the declared one, and when it was last borne out."""

    rate_bps: float
    seen_s: float


class Knowledge:
    """The declared view and what is believed of it. Fed after each round; gives views."""

    def __init__(self, declared: View) -> None:
        self._declared = declared
        self._beliefs: dict[str, _Belief] = {}
        self._patience_s: dict[str, float] = {}
        self._overheads: dict[Pair, deque[float]] = {}
        self._streaks: dict[Pair, list[float]] = {}
        self._quick: dict[str, int] = {}
        self._edges: dict[Pair, EdgeEstimator] = {}
        self._redeclared_s: dict[Pair, float] = {}
        self._epoch: int | None = None

    def redeclare(
        self, links: Mapping[str, PhysicalLink], routes: Mapping[Pair, tuple[str, ...]], now_s: float
    ) -> None:
        """Another network is declared: forget what was measured over links or routes that changed."""
        old = self._declared
        changed = {name for name in {*links, *old.links} if links.get(name) != old.links.get(name)}
        self._declared = View.of_network(old.members, links, routes, old.model_bytes, now_s, old.knowledge)
        for name in changed:
            self._beliefs.pop(name, None)
            self._patience_s.pop(name, None)
        for pair in {*old.routes, *routes}:
            route = routes.get(pair, ())
            if route != old.routes.get(pair, ()) or changed.intersection(route):
                for edge in (pair, pair[::-1]):  # the way back is part of the round trip
                    self._edges.pop(edge, None)
                    self._redeclared_s[edge] = now_s
        self._start_afresh()

    def view(self, now_s: float) -> View:
        """What is known now: links as believed, edges with the age of their newest sample."""
        self._expire(now_s)
        links = {
            name: replace(link, rate_bps=self._beliefs[name].rate_bps) if name in self._beliefs else link
            for name, link in self._declared.links.items()
        }
        view = replace(self._declared, links=links, at_s=now_s, edges={})
        edges = {pair: self._edge(view, pair, edge, now_s) for pair, edge in self._declared.edges.items()}
        return replace(view, edges=edges)

    def estimates(self, now_s: float) -> dict[Pair, Estimate]:
        """What each edge's own flow lately got: what was measured, before any conclusion from it."""
        found = {pair: estimator.estimate(now_s) for pair, estimator in self._edges.items()}
        return {pair: estimate for pair, estimate in found.items() if estimate is not None}

    def observe(self, plan: Plan, samples: Mapping[Pair, PeerSample], now_s: float) -> None:
        """Take the transfers of a complete round under `plan`.

        The first round of an epoch is not judged: its connections are fresh.
        """
        samples = {pair: self._of_this_path(pair, sample, now_s) for pair, sample in samples.items()}
        for pair, sample in samples.items():
            if pair in self._declared.edges:
                self._edges.setdefault(pair, EdgeEstimator(SILENCE_S)).add(sample, now_s)
        fresh, self._epoch = self._epoch != plan.epoch, plan.epoch
        if fresh:
            self._start_afresh()
        elif self._declared.knowledge == "measured" and all(edge[:2] in self._declared.edges for edge in plan.edges()):
            self._judge(plan, samples, now_s)

    def _of_this_path(self, pair: Pair, sample: PeerSample, now_s: float) -> PeerSample:
        """The sample without a round trip that must be of the path before the newest declaration."""
        edge = self._declared.edges.get(pair)
        since_s = now_s - self._redeclared_s.get(pair, -math.inf)
        if edge is None or since_s > MIN_RTT_WINDOW_S or not 0 < sample.rtt_s < edge.rtt_s:
            return sample
        return replace(sample, rtt_s=edge.rtt_s)

    def _start_afresh(self) -> None:
        """What rounds should take is another matter now: overheads beside the old T say little beside the new."""
        self._overheads.clear()
        self._streaks.clear()
        self._quick.clear()

    def _expire(self, now_s: float) -> None:
        for name, belief in list(self._beliefs.items()):
            patience = self._patience_s.setdefault(name, SILENCE_S)
            if now_s - belief.seen_s > patience:
                del self._beliefs[name]
                self._patience_s[name] = 2 * patience

    def _edge(self, view: View, pair: Pair, declared: Edge, now_s: float) -> Edge:
        rate = view.path_rate(*pair) if pair in view.routes else declared.rate_bps
        if (own := _own(pair)) in self._beliefs:
            rate = min(rate, self._beliefs[own].rate_bps)
        estimate = self._edges[pair].estimate(now_s) if pair in self._edges else None
        if estimate is None:
            return replace(declared, rate_bps=rate)
        return Edge(rate, estimate.rtt_s or declared.rtt_s, estimate.age_s, "measured")

    def _judge(self, plan: Plan, samples: Mapping[Pair, PeerSample], now_s: float) -> None:
        whole = _whole(plan, samples, self._declared)
        if not whole:
            return
        self._test_beliefs(_Expected.of(plan, self.view(now_s)), whole, now_s)
        expected = _Expected.of(plan, self.view(now_s))
        for pair, sample in whole.items():
            if self._is_slow(pair, sample, expected):
                self._streaks.setdefault(pair, []).append(sample.busy_s)
            else:
                self._streaks.pop(pair, None)
                excess = max(0.0, sample.busy_s - expected.seconds)
                self._overheads.setdefault(pair, deque(maxlen=OVERHEADS)).append(excess)
        while slow := self._confirmed(whole, expected):
            self._blame(slow - _fed_by(plan, slow) or slow, whole, expected, now_s)
            expected = _Expected.of(plan, self.view(now_s))

    def _confirmed(self, whole: Mapping[Pair, PeerSample], expected: _Expected) -> set[Pair]:
        """The edges that were slow for long enough, and that what is believed by now does not explain."""
        return {
            pair
            for pair, streak in self._streaks.items()
            if len(streak) >= CONFIRMATIONS and pair in whole and self._is_slow(pair, whole[pair], expected)
        }

    def _overhead(self, pair: Pair, sample: PeerSample) -> float:
        """Seconds that the edge is busy beyond the draining of the links; until learned, what slow start may take.

        Slow start doubles its window every round trip; one more goes by before the first acknowledgement, one for
        the last, and one is granted to a lost segment.
        """
        rtt = sample.rtt_s or self._declared.edges[pair].rtt_s
        windows = sample.bytes / (INITIAL_WINDOW * TCP_PAYLOAD_BYTES)
        allowance = rtt * (3 + math.log2(1 + windows))
        learned = self._overheads.get(pair, ())
        return min(median(learned), allowance) if len(learned) >= 2 else allowance

    def _is_slow(self, pair: Pair, sample: PeerSample, expected: _Expected) -> bool:
        return sample.busy_s > SLOWER * (expected.seconds + self._overhead(pair, sample)) + HOST_NOISE_S

    def _test_beliefs(self, expected: _Expected, whole: Mapping[Pair, PeerSample], now_s: float) -> None:
        """Bear out the beliefs in the capacities that this round used, or drop them."""
        for name in list(self._beliefs):
            users = [pair for pair in whole if name in expected.drawn[pair]]
            if not users:
                continue
            longest = max((whole[pair] for pair in users), key=lambda sample: sample.busy_s)
            if longest.busy_s * FASTER >= expected.drains[name] + longest.rtt_s:
                self._quick.pop(name, None)
                self._beliefs[name].seen_s = now_s
                continue
            self._quick[name] = self._quick.get(name, 0) + 1
            if self._quick[name] >= CONFIRMATIONS:
                del self._beliefs[name]
                self._patience_s.pop(name, None)
                self._start_afresh()

    def _blame(self, slow: set[Pair], whole: Mapping[Pair, PeerSample], expected: _Expected, now_s: float) -> None:
        """Of the edges in `slow`, correct the one that needs it least. Its streak ends."""
        suspects: list[tuple[float, Pair, str]] = []
        for pair in sorted(slow):
            busy = min(self._streaks[pair][-CONFIRMATIONS:])
            name = _suspect(pair, busy, whole, expected)
            believed_s = expected.drains.get(name, expected.alone(pair, whole[pair].bytes))
            suspects.append((believed_s / (busy - self._overhead(pair, whole[pair])), pair, name))
        factor, pair, name = max(suspects)
        del self._streaks[pair]
        view = expected.view
        rate = view.links[name].rate_bps if name in view.links else view.edges[pair].rate_bps
        self._beliefs[name] = _Belief(rate * factor, now_s)
        self._overheads.clear()


@dataclass(frozen=True, slots=True)
class _Expected:
    """What a round of a plan should do to each capacity under a view: `drains` in seconds, `seconds` the longest."""

    view: View
    drawn: Mapping[Pair, tuple[str, ...]]
    drains: Mapping[str, float]
    seconds: float

    @classmethod
    def of(cls, plan: Plan, view: View) -> _Expected:
        drains = CostModel(view).drains(plan)
        return cls(view, Constraints.of(view).drawn, drains, max(drains.values()))

    def alone(self, pair: Pair, sent: float) -> float:
        """Seconds that `sent` bytes take over the edge when it is its own bottleneck."""
        return 8 * sent / (self.view.edges[pair].rate_bps * GOODPUT)


def _suspect(pair: Pair, busy_s: float, whole: Mapping[Pair, PeerSample], expected: _Expected) -> str:
    """The fullest capacity of the edge that no quicker edge used as well; the edge itself when there is none."""
    acquitted = {
        name for other, sample in whole.items() if sample.busy_s * SLOWER < busy_s for name in expected.drawn[other]
    }
    left = [name for name in expected.drawn[pair] if name not in acquitted]
    return max(left, key=lambda name: expected.drains[name]) if left else _own(pair)


def _own(pair: Pair) -> str:
    return f"{pair[0]}=>{pair[1]}"


def _whole(plan: Plan, samples: Mapping[Pair, PeerSample], view: View) -> dict[Pair, PeerSample]:
    """The samples of edges of the plan that carried most of what the plan puts on them."""
    expected: dict[Pair, float] = {}
    for source, target, tree in plan.edges():
        share = plan.trees[tree].share * view.model_bytes
        expected[source, target] = expected.get((source, target), 0.0) + share
    return {
        pair: sample
        for pair, sample in samples.items()
        if pair in view.edges and sample.bytes >= WHOLE * expected.get(pair, math.inf)
    }


def _fed_by(plan: Plan, slow: set[Pair]) -> set[Pair]:
    """The slow edges that carry on what came over another slow edge of the same tree, up to the root or down."""
    fed: set[Pair] = set()
    for tree in plan.trees:
        late = {child for child, parent in tree.reduce.items() if (child, parent) in slow}
        arrives_late = {tree.reduce[child] for child in late}
        fed.update((member, parent) for member, parent in tree.reduce.items() if member in arrives_late)
        if late:
            fed.update((parent, child) for child, parent in tree.broadcast.items())
        receives_late = {child for child, parent in tree.broadcast.items() if (parent, child) in slow}
        fed.update((parent, child) for child, parent in tree.broadcast.items() if parent in receives_late)
    return fed & slow
