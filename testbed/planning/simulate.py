"""The simulator: the time that rounds of a plan take on a network, chunk by chunk.

Members send chunks as the sync library does:

- One flow leads to each next hop. All slices advance on it alike, by parts of their length; a mean goes before a
  partial sum.
- A relay adds a chunk to its own and forwards the sum once it is complete. The root sends the mean back; a plan with
  keys sends it once the whole key is complete.
- Flows share capacities max-min fairly. A chunk arrives a one-way delay after its last byte was sent.
- A chunk that waits for a busy edge takes an auxiliary route if the plan has one. Each connection of a route carries
  one chunk at a time, until that chunk has arrived at the route's end.

The simulator leaves out TCP's slow start and losses, and the time that hosts take. `cost.predict` is the same model
with vanishing chunks, for networks too large for simulation.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from itertools import chain, pairwise

import numpy as np

from testbed.errors import BAD_INPUT
from testbed.plan import Group, Plan, Tree, codec_bytes, cut
from testbed.planning import events
from testbed.planning.constraints import Constraints, Ints
from testbed.planning.cost import predict
from testbed.planning.events import NONE, AuxiliaryRoutes, Connections, FlowNetwork, Items, MemberWork, starts
from testbed.planning.view import Pair, View

#: Bytes of an element of the model.
ELEMENT_BYTES = 4

#: The most chunks times hops that `coarse` leaves to simulate in a round; each takes 1 µs.
HOPS = 5_000

#: The most chunks of the model in a trial: a round on nine sites then takes some milliseconds to simulate.
TRIAL_CHUNKS = 128

#: The most chunks times hops of a trial, reached by 16 members. For larger networks the prediction must do.
TRIAL_HOPS = 4_000


class SimulationError(ValueError):
    """A plan uses an edge that the view lacks."""

    exit_code = BAD_INPUT


#: The sender and the receiver of an edge of a tree, and whether the edge carries means instead of partial sums.
TreeEdge = tuple[str, str, bool]


@dataclass(frozen=True, slots=True)
class Simulated:
    """The seconds of a simulated round, and the bytes of all simulated rounds over each edge."""

    #: Seconds of a round until the last member has the whole mean; of several rounds the mean of all but the first.
    seconds: float
    #: When each member had the whole mean of the first round.
    finished_s: Mapping[str, float]
    #: Bytes of all rounds over each overlay edge.
    edge_bytes: Mapping[Pair, float]


def simulate(
    plan: Plan,
    view: View,
    ready_s: Mapping[str, float] | None = None,
    rounds: int = 1,
    compute_s: Mapping[str, float] | None = None,
) -> Simulated:
    """Simulate rounds of `plan` among all members under `view`. About 1 µs for each chunk and hop.

    Of several rounds, the time of each after the first counts from the end of the round before to its own end. Such
    rounds are shorter, because a member that is done early begins to send.

    Args:
        plan: The plan.
        view: The network.
        ready_s: The second at which each member begins the first round; 0 for a member that is not named.
        rounds: The number of rounds.
        compute_s: Seconds between a member's end of a round and its begin of the next; 0 likewise.

    Raises:
        SimulationError: The plan uses an edge that the view lacks.
    """
    own = PlanRounds(plan, view.model_bytes)
    if plan.link_codecs:  # `view.model_bytes` are those through the plan's codec
        whole = codec_bytes(plan.codec)
        own = own.coded({edge: ELEMENT_BYTES * part / whole for edge, part in coded_parts(plan, [plan.whole]).items()})
    found = own.run(own.network(Constraints.of(view), view.edge_delay), ready_s or {}, rounds, compute_s or {})
    ends = found.finished_s.max(axis=1)
    seconds = ends[0] if rounds == 1 else (ends[-1] - ends[0]) / (rounds - 1)
    finished_s = dict(zip(plan.members, found.finished_s[0].tolist(), strict=True))
    return Simulated(float(seconds), finished_s, own.edge_bytes(found))


def coded_parts(plan: Plan, groups: Iterable[Group]) -> dict[TreeEdge, float]:
    """Return the bytes that rounds of groups send over each edge, as a part of those in fp32.

    A mean is encoded once, by the codec of its tree that takes the fewest bytes. An edge in several trees has the mean
    of its parts in them, weighted by the trees' shares.
    """
    coded: dict[TreeEdge, float] = defaultdict(float)
    whole: dict[TreeEdge, float] = defaultdict(float)
    for tree in chain.from_iterable(group.trees for group in groups):
        edges = edges_of(tree)
        each = {edge: codec_bytes(plan.codec_of(*edge[:2])) for edge in edges}
        least = min((each[edge] for edge in edges if edge[2]), default=ELEMENT_BYTES)
        for edge in edges:
            coded[edge] += tree.share * (least if edge[2] else each[edge])
            whole[edge] += tree.share * ELEMENT_BYTES
    return {edge: part / whole[edge] for edge, part in coded.items()}


def edges_of(tree: Tree) -> list[TreeEdge]:
    """Return the edges of a tree: those of the partial sums, then those of the means."""
    ups = [(child, parent, False) for child, parent in tree.reduce.items()]
    return [*ups, *((parent, child, True) for child, parent in tree.broadcast.items())]


def coarse(plan: Plan, model_bytes: int, most: float = HOPS) -> Plan:
    """Return the plan with chunks so large that a round has at most `most` chunks times hops.

    Its rounds take about as long as the plan's, and are simulated sooner.
    """
    hops = max(sum(plan.trees[tree].share for _, _, tree in plan.edges()), 1.0)
    return in_chunks(plan, model_bytes, most / hops)


def in_chunks(plan: Plan, model_bytes: int, most: float) -> Plan:
    """Return the plan with chunks so large that a model has at most `most` of them."""
    least = int(-(-(model_bytes / most) // 8)) * 8  # chunks are multiples of eight bytes
    return replace(plan, chunk_bytes=max(plan.chunk_bytes, least))


def affordable(view: View) -> bool:
    """Return whether the network is small enough for trials of plans: 16 members at most."""
    return 2 * (len(view.members) - 1) * TRIAL_CHUNKS <= TRIAL_HOPS


def tried_s(plan: Plan, view: View, rounds: int = 1) -> float:
    """Return the seconds of a round by a trial: the prediction, corrected by a simulation with larger chunks.

    The correction is simulated over predicted seconds, both with chunks of at least 1/TRIAL_CHUNKS of the model.
    `rounds` is as in `simulate`.
    """
    trial = in_chunks(plan, view.model_bytes, TRIAL_CHUNKS)
    predicted_s = predict(trial, view).seconds
    if not predicted_s:
        return 0.0  # a member alone
    return predict(plan, view).seconds * simulate(trial, view, rounds=rounds).seconds / predicted_s


@dataclass(frozen=True, slots=True)
class _Chunk:
    """A chunk of a tree: its position among all trees' chunks, bytes, its key, and the part of its slice before it."""

    position: int
    size: float
    key: int
    front: float


class PlanRounds:
    """The rounds of a plan as arrays: the items of each flow, on any network."""

    def __init__(self, plan: Plan, model_bytes: int) -> None:
        self._plan = plan
        self._member = {name: m for m, name in enumerate(plan.members)}
        self._trees = _cut(plan, model_bytes // ELEMENT_BYTES)
        self._chunks = list(chain.from_iterable(self._trees))
        self._hops = self._make_hops()
        #: The items that flows carry in a round.
        self.items = self._make_items()
        self._auxiliary = self._make_auxiliary()

    @property
    def pairs(self) -> list[Pair]:
        """The (sender, receiver) of each flow; an auxiliary route has flows of its own beside the direct ones."""
        return [(source, target) for source, target, _ in self._hops]

    def coded(self, parts: Mapping[tuple[str, str, bool], float]) -> PlanRounds:
        """Return these rounds with the bytes of each chunk reduced to the part that the codec of its edge sends.

        Args:
            parts: (sender, receiver, True for means and False for partial sums) → the part of a chunk's bytes that is
                sent; 1 if not named.
        """
        each = np.array([[parts.get((*pair, is_mean), 1.0) for is_mean in (False, True)] for pair in self.pairs])
        other = copy(self)
        other.items = self.items._replace(size=self.items.size * each[self.items.flow, self.items.is_mean])
        return other

    def network(
        self, limits: Constraints, delay_s: Callable[[str, str], float], names: Sequence[str] | None = None
    ) -> FlowNetwork:
        """Return the flows of these rounds as arrays, on a network with these capacities and delays.

        Args:
            limits: The capacities, and those that each edge draws on.
            delay_s: Returns the one-way delay of an edge (sender, receiver) in seconds.
            names: The capacities in the order to number them in. Networks that follow one another within a round need
                the same names; by default those that the flows use.

        Raises:
            SimulationError: The network lacks an edge of the plan.
        """
        if missing := [pair for pair in self.pairs if pair not in limits.drawn]:
            raise SimulationError(
                f"the plan sends from {missing[0][0]} to {missing[0][1]}, and the view has no such edge"
            )
        names = names or sorted({name for pair in self.pairs for name in limits.drawn[pair]})
        number = {name: i for i, name in enumerate(names)}
        drawn = [[number[name] for name in limits.drawn[pair]] for pair in self.pairs]
        return FlowNetwork(
            target=_ints(self._member[target] for _, target in self.pairs),
            delay_s=np.array([delay_s(*pair) for pair in self.pairs], dtype=np.float64),
            draws=starts(drawn),
            drawn=_ints(chain.from_iterable(drawn)),
            capacity=np.array([limits.goodput_bps[name] / 8 for name in names], dtype=np.float64),
        )

    def run(
        self,
        network: FlowNetwork,
        ready_s: Mapping[str, float],
        rounds: int = 1,
        compute_s: Mapping[str, float] | None = None,
        later: Sequence[tuple[float, FlowNetwork]] = (),
        connections: Connections | None = None,
    ) -> events.Found:
        """Simulate rounds on a network, and on those that it becomes `later`; see `simulate` and `events.run`."""
        work = self._make_work(ready_s, compute_s or {})
        return events.run(network, self.items, work, self._auxiliary, rounds, later, connections)

    def edge_bytes(self, found: events.Found) -> dict[Pair, float]:
        """Return the bytes that each overlay edge carried."""
        carried: dict[Pair, float] = {}
        for pair, size in zip(self.pairs, found.sent.tolist(), strict=True):
            carried[pair] = carried.get(pair, 0.0) + size
        return carried

    def _make_hops(self) -> dict[tuple[str, str, int], int]:
        """Return the flows (source, target, level), each with its number.

        Level 0 is direct. The level of a flow of a route is the number of hops that are left.
        """
        hops = {(source, target, 0) for source, target, _ in self._plan.edges()}
        for route in self._plan.auxiliary:
            path = (route.source, *route.via, route.target)
            hops.update((a, b, len(path) - 1 - i) for i, (a, b) in enumerate(pairwise(path)))
        return {hop: f for f, hop in enumerate(sorted(hops))}

    def _make_items(self) -> Items:
        """Return the items in the order that senders prefer: the front of each slice first, a mean before a sum."""
        members, positions = len(self._member), len(self._chunks)
        fronts = np.array([chunk.front for chunk in self._chunks])
        sizes = np.array([chunk.size for chunk in self._chunks])
        parts: list[tuple[Ints, ...]] = []
        for tree, chunks in zip(self._plan.trees, self._trees, strict=True):
            ways = [(child, parent, 0) for child, parent in tree.reduce.items()]
            ways += [(parent, child, 1) for child, parent in tree.broadcast.items()]
            flows = _ints(self._hops[source, target, 0] for source, target, _ in ways)
            senders = _ints(self._member[source] for source, _, _ in ways)
            of_tree = _ints(chunk.position for chunk in chunks)
            each = (flows, senders, _ints(is_mean for _, _, is_mean in ways))
            parts.append((*(np.repeat(values, len(chunks)) for values in each), np.tile(of_tree, len(ways))))
        flow, sender, is_mean, position = (np.concatenate(values) for values in zip(*parts, strict=True))
        order = np.lexsort((position, 1 - is_mean, fronts[position], flow))
        flow, sender, is_mean, position = flow[order], sender[order], is_mean[order], position[order]
        partial, means = (np.full((members, positions), NONE, dtype=np.int64) for _ in range(2))
        numbers = np.arange(len(flow))
        sums = numbers[is_mean == 0]
        partial[sender[sums], position[sums]] = sums
        # Items that carry one mean to several children follow one another in this order.
        sent = numbers[is_mean == 1]
        sent = sent[np.lexsort((sent, position[sent], sender[sent]))]
        same = (np.diff(sender[sent]) == 0) & (np.diff(position[sent]) == 0)
        sibling = np.full(len(flow), NONE, dtype=np.int64)
        sibling[sent[1:][same]] = sent[:-1][same]
        means[sender[sent], position[sent]] = sent  # the last of each, to which the others are siblings
        return Items(
            first=np.searchsorted(flow, np.arange(len(self._hops) + 1)).astype(np.int64),
            flow=flow,
            size=sizes[position],
            position=position,
            is_mean=is_mean,
            partial=partial,
            means=means,
            sibling=sibling,
        )

    def _make_auxiliary(self) -> AuxiliaryRoutes:
        relieves, direct, hops = [], [], []
        for route in self._plan.auxiliary:
            if (route.source, route.target, 0) not in self._hops:
                continue  # no tree sends there, so the route has nothing to take over
            path = (route.source, *route.via, route.target)
            relieves.append(self._hops[route.source, route.target, 0])
            direct.append(self._hops.get((path[0], path[1], 0), NONE))
            hops.append([self._hops[a, b, len(path) - 1 - i] for i, (a, b) in enumerate(pairwise(path))])
        return AuxiliaryRoutes(_ints(relieves), _ints(direct), starts(hops), _ints(chain.from_iterable(hops)))

    def _make_work(self, ready_s: Mapping[str, float], compute_s: Mapping[str, float]) -> MemberWork:
        awaited = np.ones((len(self._member), len(self._chunks)), dtype=np.int64)
        for tree, chunks in zip(self._plan.trees, self._trees, strict=True):
            positions = [chunk.position for chunk in chunks]
            for parent in tree.reduce.values():
                awaited[self._member[parent], positions] += 1
        keys = [chunk.key for chunk in self._chunks]
        firsts = [position for position, key in enumerate(keys) if position == 0 or keys[position - 1] != key]
        return MemberWork(
            awaited=awaited,
            key=_ints(keys),
            key_first=_ints(firsts),
            begin_s=np.array([ready_s.get(name, 0.0) for name in self._plan.members], dtype=np.float64),
            compute_s=np.array([compute_s.get(name, 0.0) for name in self._plan.members], dtype=np.float64),
        )


def _cut(plan: Plan, elements: int) -> list[list[_Chunk]]:
    """Cut each tree's slice into chunks. A chunk ends where its key ends; without keys each chunk is a key."""
    step = plan.chunk_bytes // ELEMENT_BYTES
    trees: list[list[_Chunk]] = []
    position = keys = 0
    for part, tree in zip(plan.whole.slices(elements), plan.trees, strict=True):
        chunks: list[_Chunk] = []
        for start, stop in pairwise(cut(tree.keys or (1.0,), part.start, part.stop)):
            for at in range(start, stop, step):
                size = float(min(step, stop - at) * ELEMENT_BYTES)
                chunks.append(_Chunk(position, size, keys, (at - part.start) / (part.stop - part.start)))
                position += 1
                keys += not tree.keys
            keys += bool(tree.keys) and stop > start
        trees.append(chunks)
    return trees


def _ints(values: Iterable[int]) -> Ints:
    return np.array(list(values), dtype=np.int64)
