"""The simulator's inner loop, compiled: chunks over connections, from event to event.

Everything is numbers here. Tree t's slice has some chunks; they stand one tree after the other, each at its position. A
connection ("flow") carries items in a fixed order, the one in which senders prefer them: items `first[f]` to
`first[f + 1]` are flow f's, and in each round they come once more. An item is ready once what it forwards is there; the
first that is ready goes next.

    begin --> add --(all contributions)--> put: to the parent          put --> start --(sent)--> arrives --> add, accept
                `--(at the root, the key whole)--> accept --> put: to the children
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

#: Rates, and times, that differ by less than this part are the same.
SAME = 1e-9

#: NetStorm's rule: a chunk leaves a queue of more than 2L for an auxiliary route whose first queue has less than L.
AUXILIARY_QUEUE = 1

NONE = -1

# The functions below are compiled; what they are given and return, mypy does not see.
compiled: Any = njit(cache=True)


class FlowNetwork(NamedTuple):
    """Flows: the member where each ends, how long its last byte takes to there, and the capacities (bytes/s) that it
    draws on: `drawn[draws[f]:draws[f + 1]]`."""

    target: Ints
    delay_s: Floats
    draws: Ints
    drawn: Ints
    capacity: Floats


class Items(NamedTuple):
    """What flows carry: of each item its flow, bytes and position, and whether it is a mean. `partial[m, p]` is the
    item by which member m sends its sum at position p to its parent, `means[m, p]` that by which it sends the mean to
    its first child, and `sibling` of an item the one to the next child; NONE where there is none."""

    first: Ints
    flow: Ints
    size: Floats
    position: Ints
    is_mean: Ints
    partial: Ints
    means: Ints
    sibling: Ints


class MemberWork(NamedTuple):
    """What members do: the contributions that each awaits at each position, its own included; the key of each position,
    and the first position of each key; when members begin, and how long they compute before each further round."""

    awaited: Ints
    key: Ints
    key_first: Ints
    begin_s: Floats
    compute_s: Floats


class AuxiliaryRoutes(NamedTuple):
    """Auxiliary routes: the flow that each relieves, the direct flow to its first hop (NONE where there is none), and
    its own flows, `hops[first[r]:first[r + 1]]`."""

    relieves: Ints
    direct: Ints
    first: Ints
    hops: Ints


class FlowState(NamedTuple):
    """Of flows: how many items wait, from where on to look for one, what is being sent, how much of it is left, how
    much was sent, and a ring of what is on its way, from the `head`-th arrival to before the `tail`-th (`ring_at`)."""

    waiting: Ints
    low: Ints
    sending: Ints
    left: Floats
    sent: Floats
    ring_s: Floats
    ring: Ints
    ring_first: Ints
    head: Ints
    tail: Ints


class RoundState(NamedTuple):
    """Of rounds, members and positions: what is awaited still, of whole keys too, what each member misses, and when it
    was done. Of members: when each begins next, and its round."""

    awaited: Ints
    keyed: Ints
    missing: Ints
    finished_s: Floats
    begin_s: Floats
    current: Ints


class RelayState(NamedTuple):
    """Of flows: the auxiliary route that each carries a chunk of, and when it is acknowledged. Of
    auxiliary routes: the hop at which their chunk is, and the chunk that waits for the next one."""

    route: Ints
    hop: Ints
    queue: Ints
    acknowledged_s: Floats


class SimulationState(NamedTuple):
    """What changes: the time, whether rates do, and whether each round's items are ready, and gone."""

    now: Floats
    changed: Ints
    ready: Ints
    gone: Ints
    flows: FlowState
    rounds: RoundState
    relays: RelayState


@compiled
def run(
    network: FlowNetwork, items: Items, work: MemberWork, auxiliary: AuxiliaryRoutes, rounds: int
) -> tuple[Floats, Floats]:
    """When each member finished each round, and the bytes that each flow carried."""
    state = begin(network, items, work, auxiliary, rounds)
    flows = len(network.target)
    rates, room, users = np.zeros(flows), np.zeros(len(network.capacity)), np.zeros(len(network.capacity), np.int64)
    full = np.zeros(len(network.capacity), np.int64)
    busy, count = np.zeros(flows, np.int64), 0
    while True:
        if state.changed[0]:
            count = 0
            for f in range(flows):
                if state.flows.left[f] < np.inf:
                    busy[count] = f
                    count += 1
            share(busy, count, network, room, users, full, rates)
            state.changed[0] = 0
        step = np.inf
        for i in range(count):
            step = min(step, state.flows.left[busy[i]] / rates[busy[i]])
        other_s = next_event(state)
        now = state.now[0]
        if step == np.inf and other_s == np.inf:
            break
        if other_s <= now + step:
            step = other_s - now
            state.now[0] = other_s
        else:
            state.now[0] = now + step
        over = 0
        for i in range(count):
            f = busy[i]
            if state.flows.left[f] / rates[f] <= step * (1 + SAME):
                busy[over], busy[i] = f, busy[over]  # which ones end is known before any of them begins another
                over += 1
            elif rates[f] < np.inf:
                state.flows.left[f] -= rates[f] * step
        for i in range(over):
            end(busy[i], state, network, items, auxiliary)
        arrive(state, network, items, work, auxiliary)
        if len(auxiliary.relieves):
            relieve(state, items, auxiliary)
    return state.rounds.finished_s, state.flows.sent


@compiled
def begin(
    network: FlowNetwork, items: Items, work: MemberWork, auxiliary: AuxiliaryRoutes, rounds: int
) -> SimulationState:
    """Nothing is on its way; members are about to begin."""
    flows, count = len(network.target), len(items.flow)
    members, positions = work.awaited.shape
    ring_first = np.zeros(flows + 1, np.int64)
    for f in range(flows):
        ring_first[f + 1] = ring_first[f] + max(rounds * (items.first[f + 1] - items.first[f]), 2)
    awaited = np.zeros((rounds, members, positions), np.int64)
    keyed = np.zeros((rounds, len(work.key_first)), np.int64)
    for k in range(rounds):
        awaited[k] = work.awaited
        for p in range(positions):
            keyed[k, work.key[p]] += 1
    return SimulationState(
        np.zeros(1),
        np.zeros(1, np.int64),
        np.zeros(rounds * count, np.int64),
        np.zeros(rounds * count, np.int64),
        FlowState(
            np.zeros(flows, np.int64),
            np.zeros(flows, np.int64),
            np.full(flows, NONE),
            np.full(flows, np.inf),
            np.zeros(flows),
            np.zeros(ring_first[-1]),
            np.zeros(ring_first[-1], np.int64),
            ring_first,
            np.zeros(flows, np.int64),
            np.zeros(flows, np.int64),
        ),
        RoundState(
            awaited,
            keyed,
            np.full((rounds, members), positions),
            np.full((rounds, members), np.inf),
            work.begin_s.copy(),
            np.zeros(members, np.int64),
        ),
        RelayState(
            np.full(flows, NONE),
            np.zeros(len(auxiliary.relieves), np.int64),
            np.full(len(auxiliary.relieves), NONE),
            np.full(flows, np.inf),
        ),
    )


@compiled
def share(busy: Ints, count: int, network: FlowNetwork, room: Floats, users: Ints, full: Ints, rates: Floats) -> None:
    """Max-min fair rates of the first `count` flows in `busy`: progressive filling, O(levels · flows · route
    length)."""
    room[:] = network.capacity
    users[:] = 0
    left = 0
    for i in range(count):
        f = busy[i]
        bounded = network.draws[f] < network.draws[f + 1]
        rates[f] = -1.0 if bounded else np.inf
        left += bounded
        for at in range(network.draws[f], network.draws[f + 1]):
            users[network.drawn[at]] += 1
    while left:
        least = np.inf
        for name in range(len(room)):
            if users[name]:
                least = min(least, room[name] / users[name])
        for name in range(len(room)):
            full[name] = users[name] > 0 and room[name] <= least * users[name] * (1 + SAME)
        for i in range(count):
            f = busy[i]
            if rates[f] >= 0:
                continue
            for at in range(network.draws[f], network.draws[f + 1]):
                if full[network.drawn[at]]:
                    rates[f] = least
            if rates[f] >= 0:
                left -= 1
                for at in range(network.draws[f], network.draws[f + 1]):
                    users[network.drawn[at]] -= 1
                    room[network.drawn[at]] = max(room[network.drawn[at]] - least, 0.0)


@compiled
def is_relay(f: int, items: Items) -> bool:
    """Whether a flow carries what others leave to it, and nothing of its own: one of an auxiliary route."""
    return bool(items.first[f] == items.first[f + 1])


@compiled
def next_event(state: SimulationState) -> float:
    """When something arrives next, a member begins, or an acknowledgement comes back from an auxiliary route."""
    at_s = state.rounds.begin_s.min()
    for f in range(len(state.flows.head)):
        at_s = min(at_s, state.relays.acknowledged_s[f])
        if state.flows.head[f] < state.flows.tail[f]:
            at_s = min(at_s, state.flows.ring_s[ring_at(state, f, state.flows.head[f])])
    return float(at_s)


@compiled
def ring_at(state: SimulationState, f: int, position: int) -> int:
    """Where a flow's `position`-th arrival stands."""
    size = state.flows.ring_first[f + 1] - state.flows.ring_first[f]
    return int(state.flows.ring_first[f] + position % size)


@compiled
def arrive(
    state: SimulationState, network: FlowNetwork, items: Items, work: MemberWork, auxiliary: AuxiliaryRoutes
) -> None:
    """All that happens by now, but for what ends being sent."""
    now = state.now[0]
    for f in range(len(state.flows.head)):
        while (
            state.flows.head[f] < state.flows.tail[f]
            and state.flows.ring_s[ring_at(state, f, state.flows.head[f])] <= now
        ):
            item = state.flows.ring[ring_at(state, f, state.flows.head[f])]
            state.flows.head[f] += 1
            if is_relay(f, items):
                hop(item, f, state, network, items, work, auxiliary)
            else:
                deliver(item, network.target[f], state, items, work)
    for f in range(len(state.relays.acknowledged_s)):
        if state.relays.acknowledged_s[f] <= now:
            state.relays.acknowledged_s[f] = np.inf
            free_relay(f, state, items, auxiliary)
    for m in range(len(state.rounds.begin_s)):
        if state.rounds.begin_s[m] <= now:
            state.rounds.begin_s[m] = np.inf
            k = state.rounds.current[m]
            if not state.rounds.missing[k, m]:  # a model without elements
                finish(k, m, state, work)
            for p in range(len(work.key)):
                add(k, m, p, state, items, work)


@compiled
def deliver(item: int, m: int, state: SimulationState, items: Items, work: MemberWork) -> None:
    """A chunk has come to member m."""
    k, i = item // len(items.flow), item % len(items.flow)
    if items.is_mean[i]:
        accept(k, m, items.position[i], state, items, work)
    else:
        add(k, m, items.position[i], state, items, work)


@compiled
def add(k: int, m: int, p: int, state: SimulationState, items: Items, work: MemberWork) -> None:
    """One more contribution to m's sum at a position."""
    state.rounds.awaited[k, m, p] -= 1
    if state.rounds.awaited[k, m, p]:
        return
    if items.partial[m, p] != NONE:
        put(k, items.partial[m, p], state, items)
        return
    key = work.key[p]
    state.rounds.keyed[k, key] -= 1
    if state.rounds.keyed[k, key] == 0:
        at = work.key_first[key]
        while at < len(work.key) and work.key[at] == key:
            accept(k, m, at, state, items, work)
            at += 1


@compiled
def accept(k: int, m: int, p: int, state: SimulationState, items: Items, work: MemberWork) -> None:
    """Member m has the mean at a position."""
    state.rounds.missing[k, m] -= 1
    i = items.means[m, p]
    while i != NONE:
        put(k, i, state, items)
        i = items.sibling[i]
    if not state.rounds.missing[k, m]:
        finish(k, m, state, work)


@compiled
def finish(k: int, m: int, state: SimulationState, work: MemberWork) -> None:
    """Member m has the mean of everything, and goes on."""
    state.rounds.finished_s[k, m] = state.now[0]
    if k + 1 < len(state.rounds.finished_s):
        state.rounds.current[m] = k + 1
        state.rounds.begin_s[m] = state.now[0] + work.compute_s[m]


@compiled
def put(k: int, i: int, state: SimulationState, items: Items) -> None:
    """An item may be sent."""
    f = items.flow[i]
    state.ready[k * len(items.flow) + i] = 1
    state.flows.waiting[f] += 1
    if state.flows.sending[f] == NONE:
        start(f, take(f, state, items), state, items)
        state.changed[0] = 1


@compiled
def take(f: int, state: SimulationState, items: Items) -> int:
    """The first item of a flow that is ready, of those that wait."""
    own, all_ = items.first[f + 1] - items.first[f], len(items.flow)
    at = state.flows.low[f]
    low = True
    while True:
        item = at // own * all_ + items.first[f] + at % own
        if state.gone[item]:
            state.flows.low[f] += low
        elif state.ready[item]:
            break
        else:
            low = False
        at += 1
    state.gone[item] = 1
    state.flows.waiting[f] -= 1
    return int(item)


@compiled
def start(f: int, item: int, state: SimulationState, items: Items) -> None:
    state.flows.sending[f] = item
    state.flows.left[f] = items.size[item % len(items.flow)]
    state.flows.sent[f] += state.flows.left[f]


@compiled
def end(f: int, state: SimulationState, network: FlowNetwork, items: Items, auxiliary: AuxiliaryRoutes) -> None:
    """The last byte of what a flow sends is on its way."""
    at = ring_at(state, f, state.flows.tail[f])
    state.flows.ring_s[at], state.flows.ring[at] = state.now[0] + network.delay_s[f], state.flows.sending[f]
    state.flows.tail[f] += 1
    if state.flows.waiting[f]:
        start(f, take(f, state, items), state, items)
        return
    state.flows.left[f] = np.inf
    state.changed[0] = 1
    if not is_relay(f, items):  # taken until an acknowledgement comes back
        state.flows.sending[f] = NONE


@compiled
def hop(
    item: int,
    f: int,
    state: SimulationState,
    network: FlowNetwork,
    items: Items,
    work: MemberWork,
    auxiliary: AuxiliaryRoutes,
) -> None:
    """A chunk has come to the end of one of its auxiliary route's flows."""
    r = state.relays.route[f]
    state.relays.hop[r] += 1
    at = auxiliary.first[r] + state.relays.hop[r]
    if at < auxiliary.first[r + 1]:
        onward = auxiliary.hops[at]
        if state.flows.sending[onward] == NONE:
            relay(onward, r, item, state, items)
        else:
            state.relays.queue[r] = item
        return
    at_s = state.now[0]
    for back in range(auxiliary.first[r + 1] - 1, auxiliary.first[r] - 1, -1):
        at_s += network.delay_s[auxiliary.hops[back]]
        state.relays.acknowledged_s[auxiliary.hops[back]] = at_s
    deliver(item, network.target[f], state, items, work)


@compiled
def relay(f: int, r: int, item: int, state: SimulationState, items: Items) -> None:
    state.relays.route[f] = r
    start(f, item, state, items)
    state.changed[0] = 1


@compiled
def free_relay(f: int, state: SimulationState, items: Items, auxiliary: AuxiliaryRoutes) -> None:
    """The acknowledgement has come back: a flow may carry another chunk, one that waits for it first."""
    state.flows.sending[f] = NONE
    for r in range(len(auxiliary.relieves)):
        if state.relays.queue[r] != NONE and auxiliary.hops[auxiliary.first[r] + state.relays.hop[r]] == f:
            item = state.relays.queue[r]
            state.relays.queue[r] = NONE
            relay(f, r, item, state, items)
            return


@compiled
def relieve(state: SimulationState, items: Items, auxiliary: AuxiliaryRoutes) -> None:
    """Move the first of what waits for a flow to auxiliary routes that are free."""
    for r in range(len(auxiliary.relieves)):
        f, first = auxiliary.relieves[r], auxiliary.hops[auxiliary.first[r]]
        queued = state.flows.waiting[auxiliary.direct[r]] if auxiliary.direct[r] != NONE else 0
        if (
            state.flows.waiting[f] > 2 * AUXILIARY_QUEUE
            and queued < AUXILIARY_QUEUE
            and state.flows.sending[first] == NONE
        ):
            state.relays.hop[r] = 0
            relay(first, r, take(f, state, items), state, items)
