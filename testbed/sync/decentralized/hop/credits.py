"""Tokens, as seen by the member that takes them (Hop, section on token queues).

TokenQ(o -> i) lies with o in the paper, and i asks it for a token at every iteration. Here o pushes its tokens to i
as it makes them, which spares the round trip: the queue is what i holds plus what is on its way to i.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping


class Credits:
    """Tokens held from each out-neighbour; each queue begins with max_ig - 1, one short of what iteration 0 makes it.

    |TokenQ(o -> me)| = max_ig + Iter(o) - Iter(me) at any moment, so what is held less max_ig is how far o is ahead,
    or less than that while tokens are on their way.
    """

    def __init__(self, givers: Iterable[str], max_ig: int) -> None:
        self._held = dict.fromkeys(givers, max_ig - 1)
        self._max_ig = max_ig

    @property
    def held(self) -> Mapping[str, int]:
        """Tokens by the out-neighbour that gave them."""
        return self._held

    def put(self, giver: str, count: int) -> None:
        """Tokens have come from `giver`."""
        self._held[giver] += count

    def forget(self, giver: str) -> None:
        """`giver` gives none any more, and none of it are needed: its queue is settled."""
        del self._held[giver]

    @property
    def least(self) -> int:
        """How many iterations could be entered at once: the tokens of the out-neighbour that gave fewest."""
        return min(self._held.values())

    def take(self, count: int) -> None:
        """Spends `count` tokens of each out-neighbour; ValueError when one has given fewer."""
        if count > self.least:
            raise ValueError(f"{count} tokens asked of each, where one gave {self.least}")
        for giver in self._held:
            self._held[giver] -= count

    def lead(self, giver: str) -> int:
        """At least how many iterations `giver` is ahead of this member; negative when it may be behind."""
        return self._held[giver] - self._max_ig

    def lag(self, quantile: float) -> int:
        """How far this member is behind: the lead that a share `quantile` of the out-neighbours may fall short of.

        At 0 it is the minimum, which one slow neighbour holds at nothing however far ahead the others are.
        """
        leads = sorted(self.lead(giver) for giver in self._held)
        return leads[min(int(quantile * len(leads)), len(leads) - 1)]

    def jump(self, max_jump: int, quantile: float) -> int:
        """Iterations to advance by: more than 1 when the lag is 2 or more, and never more than there are tokens for."""
        lag = self.lag(quantile)
        return min(lag, max_jump, self.least) if lag >= 2 else 1
