"""Tokens, as seen by the member that takes them (Hop, section on token queues).

TokenQ(o -> i) lies with o in the paper, and i asks it for a token at every iteration. Here o pushes its tokens to i
as it makes them, which spares the round trip: the queue is what i holds plus what is on its way to i.

A queue is counted from iteration 0 on, also where o and i become neighbours later: o then gives as many as it would
have given by now, and i has taken one an iteration. So no swap of the graph makes tokens or loses any.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable


class Credits:
    """Tokens held from each out-neighbour; each queue begins with max_ig - 1, one short of what iteration 0 makes it.

    |TokenQ(o -> me)| = max_ig + Iter(o) - Iter(me) at any moment, so what is held less max_ig is how far o is ahead,
    or less than that while tokens are on their way. `taken`: a member that begins in a later iteration than 0 has
    taken as many.
    """

    def __init__(self, givers: Iterable[str], max_ig: int, taken: int = 0) -> None:
        self._givers = tuple(givers)
        self._max_ig = max_ig
        self._given: Counter[str] = Counter()
        self._taken = taken

    def held(self, giver: str) -> int:
        """How many tokens of an out-neighbour are here."""
        return self._max_ig - 1 + self._given[giver] - self._taken

    def put(self, giver: str, count: int) -> None:
        """Tokens have come from `giver`, which may become an out-neighbour only afterwards."""
        self._given[giver] += count

    def forget(self, gone: str) -> None:
        """Its tokens are gone: should it come again, it gives anew from iteration 0 on."""
        del self._given[gone]

    def turn(self, givers: Iterable[str]) -> None:
        """The out-neighbours are others now, or fewer."""
        self._givers = tuple(givers)

    def least(self, givers: Iterable[str]) -> int:
        """How many iterations could be entered at once: the tokens of the neighbour that gave fewest."""
        return min(map(self.held, givers))

    def take(self, count: int) -> None:
        """Spends `count` tokens of each out-neighbour; ValueError when one has given fewer."""
        if count > self.least(self._givers):
            raise ValueError(f"{count} tokens asked of each, where one gave {self.least(self._givers)}")
        self._taken += count

    def lead(self, giver: str) -> int:
        """At least how many iterations `giver` is ahead of this member; negative when it may be behind."""
        return self.held(giver) - self._max_ig

    def lag(self, quantile: float) -> int:
        """How far this member is behind: the lead that a share `quantile` of the out-neighbours may fall short of.

        At 0 it is the minimum, which one slow neighbour holds at nothing however far ahead the others are.
        """
        leads = sorted(self.lead(giver) for giver in self._givers)
        return leads[min(int(quantile * len(leads)), len(leads) - 1)]

    def jump(self, max_jump: int, quantile: float) -> int:
        """Iterations to advance by: more than 1 when the lag is 2 or more, and never more than there are tokens for."""
        lag = self.lag(quantile)
        return min(lag, max_jump, self.least(self._givers)) if lag >= 2 else 1
