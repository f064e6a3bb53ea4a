"""One chunk in a round at one member: whose updates its sum holds, and when its mean is final. No I/O, no lock.

    nothing --add_local, add--> partial sum --add--> sum of all below this member --finish (root), accept--> mean

A member does not copy its own values. A leaf of the tree sends its values themselves; any other member adds its values
when the first child's sum comes. The mean then replaces the values. It exists only once the root holds every member's
update, so this member's partial sum has been received and added by then. Until then the values are this member's
contribution.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from testbed.sync.allreduce.role import TreeRole
from testbed.sync.errors import FrameError, SyncError


class Part(NamedTuple):
    """The members whose updates a sum holds, and what they announce."""

    #: A bitmap of the members.
    contributors: int
    #: The sum of the members' weights.
    weight: float
    #: The epoch that the members are ready to use in the next round; None if only this member contributed, whose epoch
    #: is filled in when the sum is queued (see Reduction.sealed).
    successor: int | None
    #: True if one of the members overlaps rounds, see AllReduceGroup.
    overlaps: bool = False

    def joined(self, other: Part, epoch: int) -> Part:
        """Return both parts as one. If their successors differ, the successor is the round's own `epoch`."""
        ready = {self.successor, other.successor} - {None}
        return Part(
            self.contributors | other.contributors,
            self.weight + other.weight,
            epoch if len(ready) > 1 else next(iter(ready), None),
            self.overlaps or other.overlaps,
        )


class PartialSum(NamedTuple):
    """The sum that a child sends: `scale` × `values`."""

    values: torch.Tensor
    scale: float
    part: Part


class LocalValues(NamedTuple):
    """This member's own values of a chunk."""

    values: torch.Tensor
    weight: float
    #: True if this member overlaps rounds.
    overlaps: bool


class ChunkReduction:
    """The reduction of a chunk at one member.

    Args:
        in_order: Add the member's own values first and then its children's sums by name, so that sums have the same
            bits in each run. Early sums are copied and kept, which takes up to a chunk for each child but the last.

    Attributes:
        sum: The buffer of the sum, flat.
        part: The updates in the sum so far, or None before the first.
        mean: The updates in the mean, or None until the mean is final here.
        duplicated: A bitmap of members whose update came a second time.
    """

    __slots__ = ("_early", "_epoch", "_local", "_role", "_summed", "duplicated", "mean", "part", "sum")

    def __init__(self, epoch: int, role: TreeRole, sum_: torch.Tensor, in_order: bool) -> None:
        self.sum = sum_
        self.part: Part | None = None
        self.mean: Part | None = None
        self.duplicated = 0
        self._epoch = epoch
        self._role = role
        self._local: LocalValues | None = None
        self._summed = False
        self._early: dict[str, PartialSum] | None = {} if in_order else None

    @property
    def complete(self) -> bool:
        """True if the sum holds the updates of this member and of all members below it."""
        return self.part is not None and self.part.contributors == self._role.expected

    @property
    def unsummed(self) -> LocalValues | None:
        """This member's own values if the sum holds nothing else and is not computed; otherwise None."""
        return None if self._summed else self._local

    def add_local(self, local: LocalValues, residual: torch.Tensor | None = None) -> bool:
        """Add this member's values, and the residual of earlier rounds if there is one.

        Returns:
            True if the sum is complete.
        """
        self._local = local
        if self.part is not None:
            own = self._scaled(local.values, local.weight)
            self.sum.add_(own if residual is None else own + residual)
        elif residual is not None:
            self._sum_local(local)
            self.sum.add_(residual)
        self._join(Part(self._role.own, local.weight, None, local.overlaps))
        self._add_early()
        return self.complete

    def add(self, peer: str, partial: PartialSum) -> bool:
        """Add a child's partial sum. Its values are a view that is valid during the call only.

        A partial sum with an update that the sum holds already is ignored and counted in `duplicated`.

        Returns:
            True if the sum is complete.

        Raises:
            FrameError: The peer may not send these members' updates here.
        """
        below = self._role.partials_from.get(peer)
        contributors = partial.part.contributors
        if below is None or not contributors or contributors & ~below:
            raise FrameError(
                f"{peer} may not send updates of the members {contributors:#b} here",
                rule="unexpected-sender",
                member=peer,
            )
        if self.part is not None and self.part.contributors & contributors:
            self.duplicated |= self.part.contributors & contributors
            return False
        if self._early is not None and peer != self._next_in_order():
            self._early[peer] = partial._replace(values=partial.values.clone())
            return False
        self._sum(partial)
        self._add_early()
        return self.complete

    def finish(self) -> None:
        """Divide the complete sum by its weight. Called at the root.

        Raises:
            SyncError: The weights add up to 0.
        """
        assert self.part is not None
        if self.part.weight <= 0:
            raise SyncError("the members' weights add up to 0: no mean exists", rule="no-weight")
        if not self._summed:
            assert self._local is not None
            self._sum_local(self._local)
        self.sum.div_(self.part.weight)

    def check_mean(self, peer: str) -> None:
        """Check that `peer` may send the mean now.

        Raises:
            FrameError: The peer is not this member's parent, or this member's sum is not complete.
        """
        if peer != self._role.mean_from:
            text = f"{peer} sent a mean, and is not this member's parent in the tree"
            raise FrameError(text, rule="unexpected-sender", member=peer)
        if not self.complete:
            raise FrameError(
                f"{peer} sent a mean before this member sent its partial sum", rule="mean-early", member=peer
            )

    def accept(self, part: Part, mean: torch.Tensor) -> bool:
        """Replace the values by the mean. Returns False for a second mean, which is ignored and counted."""
        if self.mean is not None:
            self.duplicated |= part.contributors
            return False
        assert self._local is not None
        self.mean = part
        self._local.values.copy_(mean)
        return True

    def release(self) -> None:
        """Drop this member's values, which belong to their owner again after the round."""
        self._local = None

    def missing(self) -> dict[str, str]:
        """Return the peers that this member waits for, each with the missing data in words."""
        if self.mean is not None:
            return {}
        have = self.part.contributors if self.part else 0
        missing = {} if self._role.mean_from is None else {self._role.mean_from: "the mean"}
        missing |= {child: "its partial sum" for child, below in self._role.partials_from.items() if below & ~have}
        return missing

    def _sum_local(self, local: LocalValues) -> None:
        if local.weight:
            self.sum.copy_(local.values).mul_(local.weight)
        else:  # see _scaled
            self.sum.zero_()
        self._summed = True

    def _scaled(self, values: torch.Tensor, scale: float) -> torch.Tensor:
        # Values without weight do not count, whatever they are: the mean loss of no samples is NaN, and so is 0 × NaN.
        if scale == 0:
            return torch.zeros_like(self.sum)
        # The product is rounded before the addition, so that a sum of two has the same bits in either order.
        return values if scale == 1 else values.to(self.sum.dtype) * scale

    def _sum(self, partial: PartialSum) -> None:
        values = self._scaled(partial.values, partial.scale)
        if self.part is None:
            self.sum.copy_(values)
        elif self._summed:
            self.sum.add_(values)
        else:
            assert self._local is not None
            if self._local.weight == 1 and self._local.values.dtype == self.sum.dtype:  # one pass instead of two
                torch.add(self._local.values, values, out=self.sum)
            else:
                self._sum_local(self._local)
                self.sum.add_(values)
        self._summed = True
        self._join(partial.part)

    def _join(self, part: Part) -> None:
        self.part = part if self.part is None else self.part.joined(part, self._epoch)

    def _next_in_order(self) -> str | None:
        """Return the child whose sum is next in order; None before this member's own values, or at the end."""
        part = self.part
        if part is None:
            return None
        left = (child for child, below in self._role.partials_from.items() if not below & part.contributors)
        return next(left, None)

    def _add_early(self) -> None:
        early = self._early
        while early and (child := self._next_in_order()) in early:
            assert child is not None
            self._sum(early.pop(child))
