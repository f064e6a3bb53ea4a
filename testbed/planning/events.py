"""The simulator's inner loop in C (`events.c`): its inputs and outputs as arrays, and its max-min fair rates by name.

Members, flows, items and capacities are numbers. The slices of a plan's trees stand one after the other, cut into
chunks; a chunk's number in that order is its position. A flow (a connection) carries items in a fixed order, the one in
which its sender prefers them: items `first[f]` to `first[f + 1]` belong to flow f, and every round carries them again.

Connections under BBR (`bbr.h`) are rows of an array. Their estimates are kept from one simulation to the next.
"""

from __future__ import annotations

import ctypes
from collections.abc import Hashable, Iterable, Mapping, Sequence
from functools import cache
from itertools import chain
from math import inf
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from testbed.compiler import library
from testbed.link import TCP_PAYLOAD_BYTES
from testbed.planning.constraints import Floats, Ints

#: No item, flow or route.
NONE = -1

Flow = TypeVar("Flow", bound=Hashable)
Capacity = TypeVar("Capacity", bound=Hashable)

#: The fields of a connection, in the names and the order of `struct bbr`; `bbr.h` explains each.
CONNECTION = np.dtype(
    [
        ("trip_s", "f8"),
        ("estimate", "f8"),
        ("samples", "f8", 10),
        *((name, "f8") for name in ("trips", "startup", "phase", "held", "held_trips")),
        *((name, "f8") for name in ("lossy_trips", "lossy_bytes", "lossy_s", "lossy_rate", "stopped_s")),
        *((name, "f8") for name in ("highest", "lowest", "due_s", "wait_s")),
        *((name, "f8") for name in ("began_s", "ends_s", "bytes", "last", "paused", "first", "stretched")),
    ]
)

#: An array of CONNECTION, one row for each flow; a row whose `trip_s` is 0 is not a connection.
Connections = NDArray[Any]

#: Bytes of a new connection's first round trip: ten packets.
INITIAL_BYTES = 10 * TCP_PAYLOAD_BYTES
#: Round trips without growth after which a connection leaves STARTUP.
STARTUP_TRIPS = 3


class FlowNetwork(NamedTuple):
    """A plan's flows as arrays: each flow's receiver, delay and capacities, and each capacity's bytes/s."""

    #: Flow → the member that receives it.
    target: Ints
    #: Flow → seconds from a byte's departure to its arrival.
    delay_s: Floats
    #: Flow f draws on the capacities `drawn[draws[f]:draws[f + 1]]`.
    draws: Ints
    drawn: Ints
    #: Capacity → bytes/s.
    capacity: Floats


class Items(NamedTuple):
    """The items that flows carry in a round: a chunk's partial sum or its mean, over one hop."""

    #: Flow f carries the items from `first[f]` to before `first[f + 1]`.
    first: Ints
    #: Item → its flow, bytes, position, and 1 for a mean or 0 for a partial sum.
    flow: Ints
    size: Floats
    position: Ints
    is_mean: Ints
    #: [member, position] → the item by which the member sends its sum to its parent, or NONE.
    partial: Ints
    #: [member, position] → the item by which the member sends the mean to its first child, or NONE.
    means: Ints
    #: Item → the item with the same mean to the next child, or NONE.
    sibling: Ints


class MemberWork(NamedTuple):
    """The number of contributions that each member waits for, and when each member begins its rounds."""

    #: [member, position] → contributions to the member's sum, its own included.
    awaited: Ints
    #: Position → its key; key → its first position.
    key: Ints
    key_first: Ints
    #: Member → the second at which its first round begins; seconds that it computes before each later round.
    begin_s: Floats
    compute_s: Floats


class AuxiliaryRoutes(NamedTuple):
    """Auxiliary routes, which take over chunks that wait for a busy flow."""

    #: Route → the flow that it relieves.
    relieves: Ints
    #: Route → the direct flow to its first hop, or NONE.
    direct: Ints
    #: Route r consists of the flows `hops[first[r]:first[r + 1]]`.
    first: Ints
    hops: Ints


class Found(NamedTuple):
    """The times of members and items in a simulation, and the bytes of flows; moments are in seconds from its begin."""

    #: [round, member] → when the member had the mean of everything.
    finished_s: Floats
    #: Flow → bytes that it sent in all rounds.
    sent: Floats
    #: [round, item] → when sending began, when it ended, when the item arrived; NaN if an auxiliary route carried it.
    began_s: Floats
    ended_s: Floats
    came_s: Floats
    #: [round, item] → bytes/s that the flow's connection allowed as sending began; 0 without a connection.
    pace: Floats


def opened(trip_s: float) -> Connections:
    """Return the state of one new connection, which has sent nothing; its round trip takes `trip_s` seconds."""
    row = np.zeros(1, CONNECTION)
    row["trip_s"], row["estimate"] = trip_s, INITIAL_BYTES / trip_s
    row["startup"], row["ends_s"] = STARTUP_TRIPS, inf
    return row


def run(
    network: FlowNetwork,
    items: Items,
    work: MemberWork,
    auxiliary: AuxiliaryRoutes,
    rounds: int,
    later: Sequence[tuple[float, FlowNetwork]] = (),
    connections: Connections | None = None,
) -> Found:
    """Return the times and bytes of simulated rounds. The interpreter's lock is free meanwhile.

    Args:
        network: The flows, with the capacities that they draw on.
        items: What each flow carries in a round.
        work: The contributions that members await.
        auxiliary: The auxiliary routes.
        rounds: The number of rounds.
        later: The networks that `network` becomes, each with its moment, in order of time; they have the same flows
            and as many capacities.
        connections: One row for each flow. A flow sends no faster than its connection allows; the rows are updated.
    """
    members, positions = work.awaited.shape
    flows, chunks = len(network.target), (rounds, len(items.flow))
    counts = (flows, len(network.capacity), len(items.flow), members, positions, len(work.key_first))
    sizes = np.array([*counts, len(auxiliary.relieves), rounds, 1 + len(later)], dtype=np.int64)
    found = Found(np.empty((rounds, members)), np.empty(flows), *(np.empty(chunks) for _ in range(4)))
    networks = _addresses(array for each in (network, *(each for _, each in later)) for array in each)
    from_s = np.array([at_s for at_s, _ in later], dtype=np.float64)
    given = (_addresses(record) for record in (items, work, auxiliary, found))
    kept = None if connections is None else connections.ctypes.data
    if not load().simulate(sizes.ctypes.data, networks, from_s.ctypes.data, *given, kept):
        raise MemoryError(f"out of memory while simulating {rounds} rounds of {len(items.flow)} items")
    return found


def max_min(drawn: Mapping[Flow, Sequence[Capacity]], capacity: Mapping[Capacity, float]) -> dict[Flow, float]:
    """Return the max-min fair rate of each flow: no flow could get more without a flow of no higher rate getting less.

    TCP flows with similar round trips come near these rates.

    Args:
        drawn: The capacities that each flow draws on; a flow without any gets an infinite rate.
        capacity: The rate of each capacity, in the unit of the result.
    """
    names = list(dict.fromkeys(chain.from_iterable(drawn.values())))
    number = {name: i for i, name in enumerate(names)}
    network = FlowNetwork(
        target=np.empty(0, dtype=np.int64),
        delay_s=np.empty(0),
        draws=starts(drawn.values()),
        drawn=np.array([number[name] for name in chain.from_iterable(drawn.values())], dtype=np.int64),
        capacity=np.array([capacity[name] for name in names], dtype=np.float64),
    )
    flows, limits, rates = np.arange(len(drawn)), np.full(len(drawn), np.inf), np.empty(len(drawn))
    floats, ints = np.empty((2, len(names))), np.empty((2, len(names)), dtype=np.int64)
    memory = floats[0], ints[0], np.empty(len(names), dtype=np.bool_), ints[1], floats[1], np.empty_like(flows)
    sizes_and_arrays = len(names), flows.ctypes.data, len(drawn), limits.ctypes.data, rates.ctypes.data
    load().max_min(_addresses(network), *sizes_and_arrays, _addresses(memory))
    return dict(zip(drawn, rates.tolist(), strict=True))


def starts(lists: Iterable[Sequence[object]]) -> Ints:
    """Return the index at which each list begins in the concatenation of all, and the length of that."""
    return np.concatenate([[0], np.cumsum([len(each) for each in lists])]).astype(np.int64)


def _addresses(record: Iterable[NDArray[Any]]) -> ctypes.Array[ctypes.c_void_p]:
    """Return the arrays' addresses: the struct of pointers that `events.c` declares for each of the tuples above."""
    addresses = [array.ctypes.data for array in record]
    return (ctypes.c_void_p * len(addresses))(*addresses)


@cache
def load() -> ctypes.CDLL:
    """Return the functions of `events.c` and `arborescence.c`, compiled first if needed. Raises CompilerError."""
    functions = library("planning")
    size, address = ctypes.c_int64, ctypes.c_void_p
    functions.simulate.argtypes, functions.simulate.restype = [address] * 8, ctypes.c_bool
    functions.max_min.argtypes = [address, size, address, size, address, address, address]
    functions.max_min.restype = None
    functions.contract.argtypes, functions.contract.restype = [size, address, address, address], ctypes.c_bool
    functions.parents.argtypes, functions.parents.restype = [size, address, size, address], ctypes.c_bool
    return functions
