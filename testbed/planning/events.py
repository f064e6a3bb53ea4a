"""The simulator's inner loop, in C (`events.c`): what goes in and what comes out.

Everything is numbers here. Tree t's slice has some chunks; they stand one tree after the other, each at its position.
A connection ("flow") carries items in a fixed order, the one in which senders prefer them: items `first[f]` to
`first[f + 1]` are flow f's, and in each round they come once more.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from testbed.compiler import library
from testbed.planning.bbr import Connections

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

NONE = -1


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


class Found(NamedTuple):
    """When each member finished each round (rounds × members), and the bytes that each flow sent. When each item of
    each round (rounds × items) began to be sent, had been sent, and had come, and the pace of its connection as it
    began (bytes/s; 0 without one); NaN where an auxiliary route did it."""

    finished_s: Floats
    sent: Floats
    began_s: Floats
    ended_s: Floats
    came_s: Floats
    pace: Floats


def run(
    network: FlowNetwork,
    items: Items,
    work: MemberWork,
    auxiliary: AuxiliaryRoutes,
    rounds: int,
    later: Sequence[tuple[float, FlowNetwork]] = (),
    connections: Connections | None = None,
) -> Found:
    """What came of the rounds. Other threads go on meanwhile.

    The network becomes each of the `later` ones, of the same flows and as many capacities, at its moment, in order.
    Flows that are `connections` send no faster than these let them; what becomes of them is written there.
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
    if not load()(sizes.ctypes.data, networks, from_s.ctypes.data, *given, kept):
        raise MemoryError(f"{rounds} rounds of {len(items.flow)} items cannot be simulated")
    return found


def _addresses(record: Iterable[Ints | Floats]) -> ctypes.Array[ctypes.c_void_p]:
    """A struct of pointers, as `events.c` declares it for each of the tuples above; or some, one after the other."""
    addresses = [array.ctypes.data for array in record]
    return (ctypes.c_void_p * len(addresses))(*addresses)


@cache
def load() -> Callable[..., bool]:
    """The loop, which is compiled first where it must be. CompilerError."""
    loop = library("planning").simulate
    loop.argtypes, loop.restype = [ctypes.c_void_p] * 8, ctypes.c_bool
    return loop
