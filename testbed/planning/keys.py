"""Keys: the arrays that a parameter server pushes and pulls as wholes, and which server has which."""

from __future__ import annotations

from collections.abc import Sequence

#: Elements of AlexNet's arrays, weights and biases layer by layer (Krizhevsky, Sutskever and Hinton 2012, in the
#: one-tower form with 1,000 classes): 61 M in all, three in five of them in one array.
ALEXNET = (
    *(64 * 3 * 11 * 11, 64),
    *(192 * 64 * 5 * 5, 192),
    *(384 * 192 * 3 * 3, 384),
    *(256 * 384 * 3 * 3, 256),
    *(256 * 256 * 3 * 3, 256),
    *(4096 * 9216, 4096),
    *(4096 * 4096, 4096),
    *(1000 * 4096, 1000),
)

#: MXNet's kvstore: arrays of so many elements are cut over all servers, smaller ones are whole on one of them.
BIG_ARRAY = 1_000_000

#: A prime by which MXNet spreads the whole arrays.
SPREAD = 9973


def keys_of_servers(arrays: Sequence[int], servers: int) -> list[list[float]]:
    """For each of the servers, the sizes of the keys it has, in the arrays' order: MXNet's kvstore_dist.

    Array number k has its server at (k · 9973) mod servers; one of at least BIG_ARRAY elements is cut evenly.
    """
    held: list[list[float]] = [[] for _ in range(servers)]
    for number, size in enumerate(arrays):
        if size >= BIG_ARRAY:
            for keys in held:
                keys.append(size / servers)
        else:
            held[number * SPREAD % servers].append(float(size))
    return held
