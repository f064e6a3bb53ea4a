"""The simulator's inner loop, compiled: chunks over connections, from event to event.

Everything is numbers here. Tree t's slice has some chunks; they stand one tree after the other, each at its place. A
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


class Network(NamedTuple):
    """Flows: the member where each ends, how long its last byte takes to there, and the capacities (bytes/s) that it
    draws on: `drawn[draws[f]:draws[f + 1]]`."""

    target: Ints
    delay_s: Floats
    draws: Ints
    drawn: Ints
    capacity: Floats


class Items(NamedTuple):
    """What flows carry: of each item its flow, bytes and place, and whether it is a mean. `partial[m, p]` is the item
    by which member m sends its sum at place p to its parent, `means[m, p]` that by which it sends the mean to its first
    child, and `sibling` of an item the one to the next child; NONE where there is none."""

    first: Ints
    flow: Ints
    size: Floats
    place: Ints
    is_mean: Ints
    partial: Ints
    means: Ints
    sibling: Ints


class Work(NamedTuple):
    """What members do: the contributions that each awaits at each place, its own included; the key of each place, and
    the first place of each key; when members begin, and how long they compute before each further round."""

    awaited: Ints
    key: Ints
    key_first: Ints
    begin_s: Floats
    compute_s: Floats


class Aside(NamedTuple):
    """Auxiliary routes: the flow that each relieves, the direct flow to its first hop (NONE where there is none), and
    its own flows, `hops[ways[r]:ways[r + 1]]`."""

    relieves: Ints
    direct: Ints
    ways: Ints
    hops: Ints


class State(NamedTuple):
    """What changes. Of rounds and items: whether one is ready, and whether it is gone. Of flows: how many items wait,
    from where on to look for one, what is being sent and how much of it is left, at which rate, and what is on its way
    in a ring. Of rounds, members and places: what is awaited still."""

    now: Floats
    changed: Ints
    ready: Ints
    gone: Ints
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
    awaited: Ints
    keyed: Ints
    missing: Ints
    finished_s: Floats
    begin_s: Floats
    turn: Ints
    lane_route: Ints
    lane_hop: Ints
    lane_queue: Ints
    word_s: Floats


@compiled
def run(network: Network, items: Items, work: Work, aside: Aside, rounds: int) -> tuple[Floats, Floats]:
    """When each member finished each round, and the bytes that each flow carried."""
    state = begin(network, items, work, aside, rounds)
    flows = len(network.target)
    rates, room, users = np.zeros(flows), np.zeros(len(network.capacity)), np.zeros(len(network.capacity), np.int64)
    full = np.zeros(len(network.capacity), np.int64)
    busy, count = np.zeros(flows, np.int64), 0
    while True:
        if state.changed[0]:
            count = 0
            for f in range(flows):
                if state.left[f] < np.inf:
                    busy[count] = f
                    count += 1
            share(busy, count, network, room, users, full, rates)
            state.changed[0] = 0
        step = np.inf
        for i in range(count):
            step = min(step, state.left[busy[i]] / rates[busy[i]])
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
            if state.left[f] / rates[f] <= step * (1 + SAME):
                busy[over], busy[i] = f, busy[over]  # which ones end is known before any of them begins another
                over += 1
            elif rates[f] < np.inf:
                state.left[f] -= rates[f] * step
        for i in range(over):
            end(busy[i], state, network, items, aside)
        arrive(state, network, items, work, aside)
        if len(aside.relieves):
            relieve(state, items, aside)
    return state.finished_s, state.sent


@compiled
def begin(network: Network, items: Items, work: Work, aside: Aside, rounds: int) -> State:
    """Nothing is on its way; members are about to begin."""
    flows, count = len(network.target), len(items.flow)
    members, places = work.awaited.shape
    ring_first = np.zeros(flows + 1, np.int64)
    for f in range(flows):
        ring_first[f + 1] = ring_first[f] + max(rounds * (items.first[f + 1] - items.first[f]), 2)
    awaited = np.zeros((rounds, members, places), np.int64)
    keyed = np.zeros((rounds, len(work.key_first)), np.int64)
    for k in range(rounds):
        awaited[k] = work.awaited
        for p in range(places):
            keyed[k, work.key[p]] += 1
    return State(
        np.zeros(1),
        np.zeros(1, np.int64),
        np.zeros(rounds * count, np.int64),
        np.zeros(rounds * count, np.int64),
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
        awaited,
        keyed,
        np.full((rounds, members), places),
        np.full((rounds, members), np.inf),
        work.begin_s.copy(),
        np.zeros(members, np.int64),
        np.full(flows, NONE),
        np.zeros(len(aside.relieves), np.int64),
        np.full(len(aside.relieves), NONE),
        np.full(flows, np.inf),
    )


@compiled
def share(busy: Ints, count: int, network: Network, room: Floats, users: Ints, full: Ints, rates: Floats) -> None:
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
def is_lane(f: int, items: Items) -> bool:
    """Whether a flow carries what others leave to it, and nothing of its own: one of an auxiliary route."""
    return bool(items.first[f] == items.first[f + 1])


@compiled
def next_event(state: State) -> float:
    """When something arrives next, a member begins, or word comes back from an auxiliary route."""
    at_s = state.begin_s.min()
    for f in range(len(state.head)):
        at_s = min(at_s, state.word_s[f])
        if state.head[f] < state.tail[f]:
            at_s = min(at_s, state.ring_s[ring_at(state, f, state.head[f])])
    return float(at_s)


@compiled
def ring_at(state: State, f: int, position: int) -> int:
    """Where a flow's `position`-th arrival stands."""
    size = state.ring_first[f + 1] - state.ring_first[f]
    return int(state.ring_first[f] + position % size)


@compiled
def arrive(state: State, network: Network, items: Items, work: Work, aside: Aside) -> None:
    """All that happens by now, but for what ends being sent."""
    now = state.now[0]
    for f in range(len(state.head)):
        while state.head[f] < state.tail[f] and state.ring_s[ring_at(state, f, state.head[f])] <= now:
            item = state.ring[ring_at(state, f, state.head[f])]
            state.head[f] += 1
            if is_lane(f, items):
                hop(item, f, state, network, items, work, aside)
            else:
                deliver(item, network.target[f], state, items, work)
    for f in range(len(state.word_s)):
        if state.word_s[f] <= now:
            state.word_s[f] = np.inf
            free_lane(f, state, items, aside)
    for m in range(len(state.begin_s)):
        if state.begin_s[m] <= now:
            state.begin_s[m] = np.inf
            k = state.turn[m]
            if not state.missing[k, m]:  # a model without elements
                finish(k, m, state, work)
            for p in range(len(work.key)):
                add(k, m, p, state, items, work)


@compiled
def deliver(item: int, m: int, state: State, items: Items, work: Work) -> None:
    """A chunk has come to member m."""
    k, i = item // len(items.flow), item % len(items.flow)
    if items.is_mean[i]:
        accept(k, m, items.place[i], state, items, work)
    else:
        add(k, m, items.place[i], state, items, work)


@compiled
def add(k: int, m: int, p: int, state: State, items: Items, work: Work) -> None:
    """One more contribution to m's sum at a place."""
    state.awaited[k, m, p] -= 1
    if state.awaited[k, m, p]:
        return
    if items.partial[m, p] != NONE:
        put(k, items.partial[m, p], state, items)
        return
    key = work.key[p]
    state.keyed[k, key] -= 1
    if state.keyed[k, key] == 0:
        at = work.key_first[key]
        while at < len(work.key) and work.key[at] == key:
            accept(k, m, at, state, items, work)
            at += 1


@compiled
def accept(k: int, m: int, p: int, state: State, items: Items, work: Work) -> None:
    """Member m has the mean at a place."""
    state.missing[k, m] -= 1
    i = items.means[m, p]
    while i != NONE:
        put(k, i, state, items)
        i = items.sibling[i]
    if not state.missing[k, m]:
        finish(k, m, state, work)


@compiled
def finish(k: int, m: int, state: State, work: Work) -> None:
    """Member m has the mean of everything, and goes on."""
    state.finished_s[k, m] = state.now[0]
    if k + 1 < len(state.finished_s):
        state.turn[m] = k + 1
        state.begin_s[m] = state.now[0] + work.compute_s[m]


@compiled
def put(k: int, i: int, state: State, items: Items) -> None:
    """An item may be sent."""
    f = items.flow[i]
    state.ready[k * len(items.flow) + i] = 1
    state.waiting[f] += 1
    if state.sending[f] == NONE:
        start(f, take(f, state, items), state, items)
        state.changed[0] = 1


@compiled
def take(f: int, state: State, items: Items) -> int:
    """The first item of a flow that is ready, of those that wait."""
    own, all_ = items.first[f + 1] - items.first[f], len(items.flow)
    at = state.low[f]
    low = True
    while True:
        item = at // own * all_ + items.first[f] + at % own
        if state.gone[item]:
            state.low[f] += low
        elif state.ready[item]:
            break
        else:
            low = False
        at += 1
    state.gone[item] = 1
    state.waiting[f] -= 1
    return int(item)


@compiled
def start(f: int, item: int, state: State, items: Items) -> None:
    state.sending[f] = item
    state.left[f] = items.size[item % len(items.flow)]
    state.sent[f] += state.left[f]


@compiled
def end(f: int, state: State, network: Network, items: Items, aside: Aside) -> None:
    """The last byte of what a flow sends is on its way."""
    at = ring_at(state, f, state.tail[f])
    state.ring_s[at], state.ring[at] = state.now[0] + network.delay_s[f], state.sending[f]
    state.tail[f] += 1
    if state.waiting[f]:
        start(f, take(f, state, items), state, items)
        return
    state.left[f] = np.inf
    state.changed[0] = 1
    if not is_lane(f, items):  # a lane is taken until word comes back
        state.sending[f] = NONE


@compiled
def hop(item: int, f: int, state: State, network: Network, items: Items, work: Work, aside: Aside) -> None:
    """A chunk has come to the end of one of its auxiliary route's flows."""
    r = state.lane_route[f]
    state.lane_hop[r] += 1
    at = aside.ways[r] + state.lane_hop[r]
    if at < aside.ways[r + 1]:
        onward = aside.hops[at]
        if state.sending[onward] == NONE:
            enter_lane(onward, r, item, state, items)
        else:
            state.lane_queue[r] = item
        return
    at_s = state.now[0]
    for back in range(aside.ways[r + 1] - 1, aside.ways[r] - 1, -1):
        at_s += network.delay_s[aside.hops[back]]
        state.word_s[aside.hops[back]] = at_s
    deliver(item, network.target[f], state, items, work)


@compiled
def enter_lane(f: int, r: int, item: int, state: State, items: Items) -> None:
    state.lane_route[f] = r
    start(f, item, state, items)
    state.changed[0] = 1


@compiled
def free_lane(f: int, state: State, items: Items, aside: Aside) -> None:
    """Word has come back: a lane may carry another chunk, one that waits for it first."""
    state.sending[f] = NONE
    for r in range(len(aside.relieves)):
        if state.lane_queue[r] != NONE and aside.hops[aside.ways[r] + state.lane_hop[r]] == f:
            item = state.lane_queue[r]
            state.lane_queue[r] = NONE
            enter_lane(f, r, item, state, items)
            return


@compiled
def relieve(state: State, items: Items, aside: Aside) -> None:
    """Move the first of what waits for a flow to auxiliary routes that are free."""
    for r in range(len(aside.relieves)):
        f, lane = aside.relieves[r], aside.hops[aside.ways[r]]
        ahead = state.waiting[aside.direct[r]] if aside.direct[r] != NONE else 0
        if state.waiting[f] > 2 * AUXILIARY_QUEUE and ahead < AUXILIARY_QUEUE and state.sending[lane] == NONE:
            state.lane_hop[r] = 0
            enter_lane(lane, r, take(f, state, items), state, items)
