"""Tokens, as seen by the member that takes them (Hop, section on token queues).

In the paper TokenQ(o -> i) lies with o, and i asks o for a token at every iteration. Here o pushes its tokens to i as
o makes them, which saves a round trip: the queue is the tokens that i holds and those on their way to i.

A queue is counted from iteration 0 on, also where o and i become neighbours later: o then gives as many tokens as it
would have given until then, and i has taken one in each iteration. So no swap of the graph makes or loses tokens.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable


class Credits:
    """The tokens held from each out-neighbour. A queue begins with max_ig - 1 tokens; iteration 0 adds one.

    |TokenQ(o -> me)| = max_ig + Iter(o) - Iter(me) at any moment. So the tokens held minus max_ig are the iterations by
    which o is ahead, or fewer while tokens are on their way.

    Args:
        max_ig: See HopRules.
        taken: The iteration in which the member begins; the member counts as having taken as many tokens.
    """

    def __init__(self, max_ig: int, taken: int = 0) -> None:
        self._max_ig = max_ig
        self._given: Counter[str] = Counter()
        self._taken = taken

    def held(self, giver: str) -> int:
        """Return the number of tokens held from an out-neighbour."""
        return self._max_ig - 1 + self._given[giver] - self._taken

    def put(self, giver: str, count: int) -> None:
        """Add tokens from `giver`, which may become an out-neighbour only afterwards."""
        self._given[giver] += count

    def remove(self, gone: str) -> None:
        """Drop the tokens of `gone`. If that member joins again, it gives them again from iteration 0 on."""
        del self._given[gone]

    def least(self, givers: Iterable[str]) -> int:
        """Return how many iterations could be entered at once: the fewest tokens held from one of `givers`."""
        return min(map(self.held, givers))

    def take(self, count: int, givers: Iterable[str]) -> None:
        """Spend `count` tokens of each out-neighbour. Raises ValueError if fewer are held from one of them."""
        if count > (held := self.least(givers)):
            raise ValueError(f"{count} tokens of each out-neighbour are needed; of one of them {held} are held")
        self._taken += count

    def lead(self, giver: str) -> int:
        """Return a lower bound of the iterations by which `giver` is ahead; negative where it may be behind."""
        return self.held(giver) - self._max_ig

    def lag(self, quantile: float, givers: Iterable[str]) -> int:
        """Return the iterations by which this member is behind: the `quantile` of its out-neighbours' leads.

        By the minimum (0) a member with one slow neighbour never lags, however far ahead the others are.
        """
        leads = sorted(self.lead(giver) for giver in givers)
        return leads[min(int(quantile * len(leads)), len(leads) - 1)]

    def jump(self, max_jump: int, quantile: float, givers: Collection[str]) -> int:
        """Return the iterations to advance by: more than 1 where the lag is 2 or more, and at most the tokens held."""
        lag = self.lag(quantile, givers)
        return min(lag, max_jump, self.least(givers)) if lag >= 2 else 1
