"""Hop's modes as one value: what a member waits for, what bounds its lead, and whether it may leap."""

from __future__ import annotations

from dataclasses import dataclass

from testbed.sync.gossip.neighbours import Neighbours


@dataclass(frozen=True, slots=True)
class HopRules:
    """The rules of Hop that all members of a run go by. The defaults are Hop's standard mode.

    Raises:
        ValueError: The combination has no meaning in the protocol; the text says what to set instead.
    """

    #: Tokens bound an edge's sender to this many iterations ahead of its receiver; None: no tokens.
    max_ig: int | None = None
    #: Updates of an iteration that a member does without (N_buw).
    backup: int = 0
    #: Iterations by which a neighbour's newest update may be behind (s).
    staleness: int = 0
    #: The most iterations that a member which lags leaps at once; 1: no leaps.
    max_jump: int = 1
    #: The lag is this quantile of the out-neighbours' leads: 0 their minimum, 0.5 their median.
    quantile: float = 0.0
    #: A member sends only after its out-neighbours have acknowledged the last update.
    notify_ack: bool = False
    #: The local step goes on while updates are received and averaged.
    parallel: bool = False

    def __post_init__(self) -> None:
        if self.max_ig is not None and self.max_ig < 1:
            raise ValueError(f"max_ig {self.max_ig}: no member could advance; set at least 1, or none for no tokens")
        if min(self.backup, self.staleness) < 0 or self.max_jump < 1 or not 0 <= self.quantile <= 1:
            raise ValueError(
                f"backup {self.backup} and staleness {self.staleness} must be at least 0, max_jump {self.max_jump} at "
                f"least 1, quantile {self.quantile} within [0, 1]"
            )
        if self.backup and self.staleness:
            raise ValueError("backup and staleness both say what a member does not wait for; set one of them to 0")
        if self.notify_ack and (self.backup or self.staleness or self.max_ig is not None):
            raise ValueError("notify_ack holds members back by itself; leave out max_ig, backup and staleness")
        if self.max_jump > 1 and (self.max_ig is None or not (self.backup or self.staleness)):
            raise ValueError(
                f"max_jump {self.max_jump} needs max_ig, whose tokens show the lag, and backup or staleness, "
                "without which no member gets two iterations ahead"
            )

    @property
    def skipping(self) -> bool:
        """True if a member that lags may skip iterations."""
        return self.max_jump > 1

    @property
    def slack(self) -> int:
        """The iterations by which an update can be behind its receiver and still count.

        A member that leaps is already in its new iteration while it averages updates of the one before.
        """
        return self.staleness + self.skipping

    def check(self, neighbours: Neighbours) -> None:
        """Raise ValueError where `neighbours` are too few for these rules."""
        if self.backup > len(neighbours.sources):
            raise ValueError(
                f"backup {self.backup}: {neighbours.member} has {len(neighbours.sources)} in-neighbours; set no more"
            )
