"""Max-min fair rates of flows that share capacities, which is what TCP flows with like round trips come near."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

#: Rates that differ by less than this part are the same.
SAME = 1e-9


class Fair:
    """Rates for any set of the flows whose `routes` (numbers of capacities) are given once. `capacities` in bytes/s."""

    def __init__(self, capacities: Sequence[float], routes: Sequence[Sequence[int]]) -> None:
        nowhere = len(capacities)  # fills up short routes; has room for everybody
        width = max((len(route) for route in routes), default=0) or 1
        self._routes = np.full((len(routes), width), nowhere, dtype=np.int64)
        for row, route in enumerate(routes):
            self._routes[row, : len(route)] = route
        self._room = np.append(np.asarray(capacities, dtype=np.float64), np.inf)

    def rates(self, flows: NDArray[np.int64]) -> NDArray[np.float64]:
        """The max-min fair rate of each of `flows`, numbers of routes; infinite for a route without capacities.

        Progressive filling: a capacity whose equal share is the least that any of its flows is offered decides their
        rates; all that do so at the same time are settled at once. O(levels · flows · route length).
        """
        room = self._room.copy()
        rates = np.full(len(flows), np.inf)
        left = np.arange(len(flows))
        while len(left):
            routes = self._routes[flows[left]]
            users = np.bincount(routes.ravel(), minlength=len(room))
            share = np.where(users > 0, room / np.maximum(users, 1), np.inf)
            offered = share[routes]
            least = offered.min(axis=1)
            content = offered <= least[:, None] * (1 + SAME)
            decides = np.bincount(routes[content], minlength=len(room)) == users
            settled = (content & decides[routes]).any(axis=1)
            rates[left[settled]] = least[settled]
            finite = settled & np.isfinite(least)
            taken = np.repeat(least[finite], routes.shape[1])
            room -= np.bincount(routes[finite].ravel(), weights=taken, minlength=len(room))
            np.maximum(room, 0.0, out=room)
            left = left[~settled]
        return rates
