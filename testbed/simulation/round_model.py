"""Models of a round: when each member has its mean, and which bytes take which path when.

`ChunkModel` simulates chunk by chunk, over links that change during the round. For networks too large for that,
`fluid_model` has another model.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_right
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import floor, isfinite
from typing import Generic, NamedTuple, TypeVar

import numpy as np

from testbed.plan import PLAIN_CODEC, Group, Plan
from testbed.planning import Pair
from testbed.planning.constraints import Constraints
from testbed.planning.events import CONNECTION, Connections, FlowNetwork, Found, opened
from testbed.planning.simulate import PlanRounds, TreeEdge, coded_parts
from testbed.run.errors import RunFailed
from testbed.simulation.network import NOWHERE, NetworkState, SimulatedNetwork

#: The number of plans and sizes for which a model keeps its preparations: fragments and groups take turns.
RECENT = 32

#: Seconds of the network's future that a round is first simulated on. If the round lasts longer, it is simulated
#: again on FURTHER times as many.
AHEAD_S, FURTHER = 4.0, 4.0

#: The kernel's BBR believes the least round trip for 10 s. It then sends next to nothing (four packets) for 0.2 s
#: and a round trip, to measure the path while it is empty.
BELIEVED_S, PROBE_RTT_S = 10.0, 0.2

#: The fields of a connection's row that are moments.
MOMENTS = ("stopped_s", "due_s", "began_s", "ends_s")

#: The round trip assumed of a path without delay, a queue's worth, and of one without a route, TCP's first guess.
LEAST_TRIP_S, NO_TRIP_S = 1e-3, 1.0


@dataclass(frozen=True, slots=True)
class Payload:
    """The bytes that a round moves."""

    #: The bytes of the tensor at each member.
    bytes: int
    #: The fraction of those bytes that travels over an edge; 1 for edges that are missing here.
    coded: Mapping[TreeEdge, float] = field(default_factory=dict)


def coded_payload(plan: Plan, number: int, elements: int) -> Payload:
    """Return the payload of a float32 tensor in round `number`, at the sizes that the plan's codecs declare."""
    if plan.codec == PLAIN_CODEC and not plan.link_codecs:
        return Payload(4 * elements)
    parts = coded_parts(plan, plan.groups_in(number))
    return Payload(4 * elements, {edge: part for edge, part in parts.items() if part != 1})


class Transfer(NamedTuple):
    """One chunk's transfer: its moments, in seconds after training began, its bytes and its pace."""

    began_s: float
    ended_s: float
    #: When the first and the last byte arrived.
    first_s: float
    came_s: float
    #: Bytes of payload.
    bytes: float
    #: The pace of the connection when the chunk began, in bytes/s; 0 if the connection has no pace.
    pace: float = 0.0


@dataclass(frozen=True)
class SimulatedRound:
    """The outcome of a round. All moments are in seconds after training began."""

    #: When each member began the round, and when it had the whole mean.
    began_s: Mapping[str, float]
    finished_s: Mapping[str, float]
    #: The transfers from each sender to each receiver, in order.
    transfers: Mapping[Pair, Sequence[Transfer]]
    #: The network when the round began.
    network: NetworkState
    #: Bytes of payload that took auxiliary routes: from each sender to each final receiver, and over each hop.
    detoured: Mapping[Pair, float] = field(default_factory=dict)
    hops: Mapping[Pair, float] = field(default_factory=dict)

    @cached_property
    def sent(self) -> dict[str, dict[str, Sequence[Transfer]]]:
        """The transfers that each member sent, by receiver."""
        return self._by_member(0)

    @cached_property
    def received(self) -> dict[str, dict[str, Sequence[Transfer]]]:
        """The transfers that each member received, by sender."""
        return self._by_member(1)

    def _by_member(self, end: int) -> dict[str, dict[str, Sequence[Transfer]]]:
        found: dict[str, dict[str, Sequence[Transfer]]] = {member: {} for member in self.began_s}
        for pair, transfers in self.transfers.items():
            if transfers:
                found[pair[end]][pair[1 - end]] = transfers
        return found


class RoundModel(ABC):
    """Simulates rounds, one after the other."""

    #: The model's name in the run's manifest.
    name: str
    _grouped: tuple[Plan, list[Plan]] | None = None

    def __init__(self, network: SimulatedNetwork, timeout_s: float) -> None:
        """Make a model over `network`. A round that lasts for longer than `timeout_s` fails the run, as live."""
        self._network = network
        self._timeout_s = timeout_s

    def simulate(self, plan: Plan, number: int, began_s: Mapping[str, float], payload: Payload) -> SimulatedRound:
        """Simulate round `number` of a plan; `began_s` says when members begin it, in seconds after training began.

        The number decides whether groups reduce among themselves; such groups do not share links.

        Raises:
            RunFailed: the round cannot end, or lasts for longer than the timeout at one of the members.
        """
        done = self._simulate(plan, number, began_s, payload)
        if any(at_s - began_s[member] > self._timeout_s for member, at_s in done.finished_s.items()):
            raise self._out_of_time(min(began_s.values()))
        return done

    def _out_of_time(self, first_s: float) -> RunFailed:
        return RunFailed(
            f"a round did not end within {self._timeout_s:g} s of simulated time: it began at {first_s:.1f} s"
        )

    def _simulate(self, plan: Plan, number: int, began_s: Mapping[str, float], payload: Payload) -> SimulatedRound:
        if plan.among_all(number):
            return self._reduce(plan, began_s, payload)
        if self._grouped is None or self._grouped[0] is not plan:
            self._grouped = plan, [_alone(plan, its) for its in plan.groups]
        parts = [
            self._reduce(group, {name: began_s[name] for name in group.members}, payload) for group in self._grouped[1]
        ]
        first = min(parts, key=lambda part: part.network.at_s)
        return SimulatedRound(
            began_s,
            {name: at_s for part in parts for name, at_s in part.finished_s.items()},
            {pair: its for part in parts for pair, its in part.transfers.items()},
            first.network,
            {pair: size for part in parts for pair, size in part.detoured.items()},
            {pair: size for part in parts for pair, size in part.hops.items()},
        )

    @abstractmethod
    def _reduce(self, plan: Plan, began_s: Mapping[str, float], payload: Payload) -> SimulatedRound:
        """Simulate a round among all members of a plan."""


def _alone(plan: Plan, group: Group) -> Plan:
    """Return the plan of a group whose members reduce among themselves."""
    inside = {link: codec for link, codec in plan.link_codecs.items() if {*link.split("->")} <= {*group.members}}
    return Plan(plan.epoch, group.members, group.trees, plan.chunk_bytes, plan.policy, plan.codec, inside)


T = TypeVar("T")


class RecentPlans(Generic[T]):
    """Keeps what `make` returned for the last few plans and sizes."""

    def __init__(self, make: Callable[[Plan, int], T]) -> None:
        self._make = make
        self._made: deque[tuple[Plan, int, T]] = deque(maxlen=RECENT)

    def get(self, plan: Plan, size: int) -> T:
        """Return what `make` returns for a plan and a size in bytes."""
        for its, its_size, made in self._made:
            if its_size == size and its is plan:
                return made
        self._made.append((plan, size, self._make(plan, size)))
        return self._made[-1][2]


@dataclass(frozen=True, slots=True)
class Pause:
    """A time in which the connection of a pair sends nothing."""

    pair: Pair
    began_s: float
    ended_s: float


class BbrConnections:
    """The connections of a run under BBR, each opened by the first round that needs it.

    The state of a connection (see planning/bbr.h) passes from round to round. Now and then it pauses to measure the
    round trip:

        opened |---------- 10 s ----------|pause|---------- 10 s ----------|pause|

    On six members a round of 0.91 s became one of 1.25 s every 10.5 s, which is 4 % of the time.
    """

    def __init__(self) -> None:
        self._opened_s: dict[Pair, float] = {}
        self._rows: dict[tuple[Pair, int], Connections] = {}

    def rows(self, pairs: Sequence[Pair], state: NetworkState, from_s: float) -> Connections:
        """Return the state of the flows between pairs, with moments relative to `from_s`; zeros inside a site."""
        rows = np.zeros(len(pairs), CONNECTION)
        for f, key in enumerate(_numbered(pairs)):
            source, target = key[0]
            if state.sites[source] == state.sites[target]:
                continue
            trip_s = state.delay_s(source, target) + state.delay_s(target, source)
            trip_s = max(trip_s, LEAST_TRIP_S) if isfinite(trip_s) else NO_TRIP_S
            rows[f] = self._rows[key][0] if key in self._rows else opened(trip_s)[0]
            rows["trip_s"][f] = trip_s
        for name in MOMENTS:
            rows[name] -= from_s
        return rows

    def keep(self, pairs: Sequence[Pair], rows: Connections, from_s: float) -> None:
        """Store the flows' state after a simulation that began at `from_s`."""
        for name in MOMENTS:
            rows[name] += from_s
        self._rows |= {key: rows[f : f + 1] for f, key in enumerate(_numbered(pairs)) if rows["trip_s"][f]}

    def pauses(self, pairs: Iterable[Pair], state: NetworkState, from_s: float, until_s: float) -> Iterator[Pause]:
        """Yield the connections' pauses between two moments."""
        for pair in pairs:
            opened_s = self._opened_s.setdefault(pair, from_s)
            lasts_s = PROBE_RTT_S + state.delay_s(*pair) + state.delay_s(*reversed(pair))
            if not isfinite(lasts_s):
                continue
            cycle_s = BELIEVED_S + lasts_s
            for number in range(floor((from_s - opened_s) / cycle_s), floor((until_s - opened_s) / cycle_s) + 1):
                ended_s = opened_s + (number + 1) * cycle_s
                if number >= 0 and ended_s > from_s:
                    yield Pause(pair, ended_s - lasts_s, ended_s)


def _numbered(pairs: Sequence[Pair]) -> Iterator[tuple[Pair, int]]:
    """Yield each flow's pair and how many flows of that pair came before."""
    seen: Counter[Pair] = Counter()
    for pair in pairs:
        yield pair, seen[pair]
        seen[pair] += 1


class ChunkModel(RoundModel):
    """Simulates chunk by chunk, with max-min fair sharing.

    Rounds begin with idle links: chunks that early members send ahead do not meet the end of the round before. On the
    networks of `experiments/` that makes a difference of 2 % (7 % under tsengine).
    """

    name = "chunks"

    def __init__(self, network: SimulatedNetwork, timeout_s: float, connections: BbrConnections | None = None) -> None:
        """Make a model as `RoundModel` does. `connections` is None unless the congestion control is BBR."""
        super().__init__(network, timeout_s)
        self._connections = connections
        self._planned = RecentPlans(_rounds)

    def _reduce(self, plan: Plan, began_s: Mapping[str, float], payload: Payload) -> SimulatedRound:
        rounds = self._planned.get(plan, payload.bytes)
        if not rounds.pairs:
            return SimulatedRound(began_s, began_s, {}, self._network.at(min(began_s.values())))
        if payload.coded:
            rounds = rounds.coded(payload.coded)
        pairs, connections = rounds.pairs, self._connections
        first_s, ahead_s = min(began_s.values()), AHEAD_S
        ready_s = {member: at_s - first_s for member, at_s in began_s.items()}
        over = False
        while not over:
            until_s = max(began_s.values()) + ahead_s
            states = self._network.between(first_s, until_s)
            pauses = list(connections.pauses(sorted(set(pairs)), states[0], first_s, until_s)) if connections else []
            (_, network), *later = _flow_networks(rounds, states, pauses, first_s)
            rows = connections.rows(pairs, states[0], first_s) if connections else None
            found = rounds.run(network, ready_s, later=[(at_s - first_s, its) for at_s, its in later], connections=rows)
            over = first_s + float(found.finished_s.max()) <= until_s
            if not over and ahead_s > self._timeout_s:
                raise self._out_of_time(first_s)
            ahead_s *= FURTHER
        if connections and rows is not None:
            connections.keep(pairs, rows, first_s)
        finished = (found.finished_s[0] + first_s).tolist()
        finished_s = dict(zip(plan.members, finished, strict=True))
        return SimulatedRound(
            began_s, finished_s, _transfers(rounds, found, first_s), states[0], *_detours(rounds, found)
        )


def _rounds(plan: Plan, size: int) -> PlanRounds:
    """Return the rounds of a plan, in chunks of the values that members send. `size` is in bytes."""
    return PlanRounds(replace(plan, chunk_bytes=plan.values_bytes()), size)


def _flow_networks(
    rounds: PlanRounds, states: Sequence[NetworkState], pauses: Sequence[Pause], first_s: float
) -> Iterator[tuple[float, FlowNetwork]]:
    """Yield (moment, the plan's flows from then on), again at each change of the network or of a connection's pause."""
    pairs = rounds.pairs
    limits = [state.constraints(pairs) for state in states]
    names = sorted({name for its in limits for name in its.goodput_bps})
    ends = {at_s for pause in pauses for at_s in (pause.began_s, pause.ended_s) if at_s > first_s}
    moments = sorted({first_s, *(state.at_s for state in states[1:]), *ends})
    for at_s in moments:
        index = max(bisect_right(states, at_s, key=lambda state: state.at_s) - 1, 0)
        paused = {pause.pair: (NOWHERE,) for pause in pauses if pause.began_s <= at_s < pause.ended_s}
        its = limits[index]
        whole = Constraints({**dict.fromkeys(names, 0.0), **its.goodput_bps}, {**its.drawn, **paused})
        yield at_s, rounds.network(whole, states[index].delay_s, names)


def _transfers(rounds: PlanRounds, found: Found, first_s: float) -> dict[Pair, list[Transfer]]:
    """Return the chunks that each pair sent in order, without those that took an auxiliary route."""
    sent: dict[Pair, list[Transfer]] = {}
    items = rounds.items
    for f, pair in enumerate(rounds.pairs):
        chunks = np.arange(items.first[f], items.first[f + 1])
        chunks = chunks[~np.isnan(found.came_s[0][chunks])]
        chunks = chunks[np.argsort(found.began_s[0][chunks], kind="stable")]
        began, ended, came = (times[0][chunks] + first_s for times in (found.began_s, found.ended_s, found.came_s))
        columns = (began, ended, came - (ended - began), came, items.size[chunks], found.pace[0][chunks])
        rows = zip(*(column.tolist() for column in columns), strict=True)
        sent.setdefault(pair, []).extend(map(Transfer._make, rows))
    return sent


def _detours(rounds: PlanRounds, found: Found) -> tuple[dict[Pair, float], dict[Pair, float]]:
    """Return the bytes that took auxiliary routes: from each sender to each final receiver, and over each hop."""
    detoured: dict[Pair, float] = {}
    hops: dict[Pair, float] = {}
    items = rounds.items
    for f, pair in enumerate(rounds.pairs):
        chunks = slice(items.first[f], items.first[f + 1])
        if chunks.start == chunks.stop:  # a flow of an auxiliary route: it has no items of its own
            hops[pair] = hops.get(pair, 0.0) + float(found.sent[f])
        else:
            detoured[pair] = float(items.size[chunks][np.isnan(found.came_s[0][chunks])].sum())
    return detoured, hops
