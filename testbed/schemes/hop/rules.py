"""Hop's modes as one value: what a member waits for, what bounds its lead, and whether it may skip."""

from __future__ import annotations

from dataclasses import dataclass

from testbed.sync.gossip.neighbours import Neighbours


@dataclass(frozen=True, slots=True)
class HopRules:
    """The same for all members of a run. The defaults are the standard mode.

    max_ig      tokens bound an edge's sender to that many iterations ahead of its receiver; None is no tokens
    backup      updates of an iteration that a member does without (N_buw)
    staleness   iterations by which a neighbour's newest update may be behind (s)
    max_jump    iterations that a member which lags may leap at once; 1 is no skipping
    quantile    lag is that quantile of the out-neighbours' leads; 0 is their minimum, 0.5 their median
    notify_ack  a member sends only when its out-neighbours have acknowledged the last update
    parallel    the local step goes on while updates are received and averaged

    Raises ValueError for a combination that the protocol has no meaning for, with what to set instead.
    """

    max_ig: int | None = None
    backup: int = 0
    staleness: int = 0
    max_jump: int = 1
    quantile: float = 0.0
    notify_ack: bool = False
    parallel: bool = False

    def __post_init__(self) -> None:
        if self.max_ig is not None and self.max_ig < 1:
            raise ValueError(f"max_ig {self.max_ig}: nobody could advance; set at least 1, or none for no tokens")
        if min(self.backup, self.staleness) < 0 or self.max_jump < 1 or not 0 <= self.quantile <= 1:
            raise ValueError("backup and staleness are at least 0, max_jump at least 1, quantile within [0, 1]")
        if self.backup and self.staleness:
            raise ValueError("backup and staleness both say what a member does not wait for; set one of them to 0")
        if self.notify_ack and (self.backup or self.staleness or self.max_ig is not None):
            raise ValueError("notify_ack holds members back by itself; leave out max_ig, backup and staleness")
        if self.max_jump > 1 and (self.max_ig is None or not (self.backup or self.staleness)):
            raise ValueError(
                f"max_jump {self.max_jump} needs max_ig, whose tokens show the lag, and backup or staleness, "
                "without which nobody gets two iterations ahead"
            )

    @property
    def skipping(self) -> bool:
        """Whether a member may leap."""
        return self.max_jump > 1

    @property
    def slack(self) -> int:
        """How many iterations behind a receiver's own an update can be and still count.

        One that leaps is already in its new iteration while it renews itself from those of the one before.
        """
        return self.staleness + self.skipping

    def check(self, neighbours: Neighbours) -> None:
        """Raises ValueError when `neighbours` are too few for these rules."""
        if self.backup > len(neighbours.sources):
            raise ValueError(
                f"backup {self.backup}: {neighbours.member} has {len(neighbours.sources)} in-neighbours; set no more"
            )
