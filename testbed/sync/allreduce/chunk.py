"""One chunk's way through a round at one member: whose updates its sum holds, and when it is final. No I/O, no lock.

    nothing --add_local, add--> partial --add--> all below this member --(root) finish, (others) accept--> the mean

A member's own values are not copied: where nobody is below it, what it sends on are its values themselves; else they
are added when the first child's sum comes. The mean comes to stand in the values: it exists only once the root holds
every member's update, so this member's partial sum has then been received and added. Until then the values are what
this member contributed.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from testbed.sync.allreduce.role import TreeRole
from testbed.sync.errors import FrameError, SyncError


class Part(NamedTuple):
    """What a sum is made of: whose updates (bitmap), their weights' sum, the epoch they are ready to go by next.

    None stands for the epoch that this member itself is ready for, which it says when the sum is queued: see
    Reduction. One of them `overlaps` rounds (see AllReduceGroup).
    """

    contributors: int
    weight: float
    successor: int | None
    overlaps: bool = False

    def joined(self, other: Part, epoch: int) -> Part:
        """Both together, where members who differ stay with the round's `epoch`."""
        said = {self.successor, other.successor} - {None}
        return Part(
            self.contributors | other.contributors,
            self.weight + other.weight,
            epoch if len(said) > 1 else next(iter(said), None),
            self.overlaps or other.overlaps,
        )


class PartialSum(NamedTuple):
    """What a child sends: `scale` × `values`."""

    values: torch.Tensor
    scale: float
    part: Part


class LocalValues(NamedTuple):
    """This member's own `values` of a chunk, their weight, and whether it overlaps rounds."""

    values: torch.Tensor
    weight: float
    overlaps: bool


class ChunkReduction:
    """A chunk in a round that goes by `epoch`, at a member with a `role` in its tree, summed in `sum`.

    With `in_order` the member's own values come first and its children's after them by name, so that sums have the
    same bits run after run; what comes early is kept aside, which takes up to a chunk for each child but the last.

    `part` is what the sum is made of so far, `mean` what the mean is made of, once it is there; `duplicated` a bitmap
    of members whose update came a second time.
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
        """Whether the sum holds the updates of all below this member."""
        return self.part is not None and self.part.contributors == self._role.expected

    @property
    def unsummed(self) -> LocalValues | None:
        """This member's own values if they are all that the sum holds, and nothing was added up."""
        return None if self._summed else self._local

    def add_local(self, local: LocalValues, residual: torch.Tensor | None = None) -> bool:
        """Let this member's values count, and the `residual` of earlier rounds; whether that completes the sum."""
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
        """Add a child's partial sum, which is only lent; whether that completes the sum.

        What is there already is left out and counted: a sum that holds both an old and a new update is useless.
        FrameError when the peer has no such updates to send.
        """
        below = self._role.partials_from.get(peer)
        contributors = partial.part.contributors
        if below is None or not contributors or contributors & ~below:
            raise FrameError(
                f"{peer} has no business to send updates of {contributors:#b} here",
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
        """At the root: turn the complete sum into the mean. SyncError when the weights add up to 0."""
        assert self.part is not None
        if self.part.weight <= 0:
            raise SyncError("the members' weights add up to 0: no mean exists", rule="no-weight")
        if not self._summed:
            assert self._local is not None
            self._sum_local(self._local)
        self.sum.div_(self.part.weight)

    def check_mean(self, peer: str) -> None:
        """FrameError unless a mean from `peer` may come now."""
        if peer != self._role.mean_from:
            raise FrameError(f"{peer} has no business to send a mean here", rule="unexpected-sender", member=peer)
        if not self.complete:
            raise FrameError(
                f"{peer} sent a mean of what this member has not yet passed on", rule="mean-early", member=peer
            )

    def accept(self, part: Part, mean: torch.Tensor) -> bool:
        """The mean is there: let the values be the mean. False if one is there already, which is counted."""
        if self.mean is not None:
            self.duplicated |= part.contributors
            return False
        assert self._local is not None
        self.mean = part
        self._local.values.copy_(mean)
        return True

    def release(self) -> None:
        """The round is over here: the values are their owner's again."""
        self._local = None

    def missing(self) -> dict[str, str]:
        """The peers that this member waits for, each with what it owes."""
        if self.mean is not None:
            return {}
        have = self.part.contributors if self.part else 0
        owed = {} if self._role.mean_from is None else {self._role.mean_from: "the mean"}
        owed |= {child: "its partial sum" for child, below in self._role.partials_from.items() if below & ~have}
        return owed

    def _sum_local(self, local: LocalValues) -> None:
        self.sum.copy_(local.values).mul_(local.weight)
        self._summed = True

    def _scaled(self, values: torch.Tensor, scale: float) -> torch.Tensor:
        """A product that is rounded before it is added, so that the sum of two has the same bits either way round."""
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
        """The child whose sum is to be added next; None while this member's own is not in yet."""
        part = self.part
        if part is None:
            return None
        left = (child for child, below in self._role.partials_from.items() if not below & part.contributors)
        return next(left, None)

    def _add_early(self) -> None:
        """Add what was kept aside and is next in order."""
        early = self._early
        while early and (child := self._next_in_order()) in early:
            assert child is not None
            self._sum(early.pop(child))
