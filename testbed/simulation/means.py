"""Means of members' tensors in one process: exact, or as codecs leave them on their way through a plan's trees.

    leaf --encode, decode--> relay --add, encode, decode--> root: the mean, encoded once --decode--> all members

Sums, codes and residuals are made by the members' own code (`sync.allreduce`). Frames, queues and time are left out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from testbed.plan import Group, Plan
from testbed.planning.simulate import TreeEdge
from testbed.simulation.round_model import Payload
from testbed.sync.allreduce.chunk import PartialSum
from testbed.sync.allreduce.chunk_codec import Encoder, Kind, Sums, decode
from testbed.sync.allreduce.reduction import Contribution, OutgoingChunk, Reduction
from testbed.sync.allreduce.role import Layout, role_in
from testbed.sync.buffers import Scratch
from testbed.sync.codecs import Residual
from testbed.sync.errors import SyncError


@dataclass(frozen=True, slots=True)
class RoundInput:
    """A member's part in a round."""

    #: The member's values, 1-dimensional. The mean replaces them.
    values: torch.Tensor
    weight: float
    residual: Residual | None


def reduce(plan: Plan, number: int, inputs: Mapping[str, RoundInput]) -> Payload:
    """Replace the members' values by the mean of their group in round `number`. Returns the bytes that this moves.

    Raises:
        SyncError: The weights of a group add up to 0.
    """
    coded, plain = Counter[TreeEdge](), Counter[TreeEdge]()
    for group in plan.groups_in(number):
        its = {name: inputs[name] for name in group.members}
        if _has_codecs(plan, group, its):
            CodedReduction(plan, group, its, coded, plain).run()
        else:
            _take_exact_mean(list(its.values()))
    values = next(iter(inputs.values())).values
    size = values.numel() * values.element_size()
    return Payload(size, {edge: coded[edge] / plain[edge] for edge in coded})


def _take_exact_mean(inputs: Sequence[RoundInput]) -> None:
    """Replace all values by their mean in float32. It is summed in the members' order, so it is the same each time.

    Values of weight 0 do not count, even if they are not numbers.

    Raises:
        SyncError: The weights add up to 0.
    """
    total = sum(its.weight for its in inputs)
    if total <= 0:
        raise SyncError("the members' weights add up to 0: no mean exists", rule="no-weight")
    mean = torch.zeros_like(inputs[0].values)
    for its in inputs:
        if its.weight:
            mean.add_(its.values, alpha=its.weight / total)
    for its in inputs:
        its.values.copy_(mean)


def _has_codecs(plan: Plan, group: Group, inputs: Mapping[str, RoundInput]) -> bool:
    """Return whether the group's edges have codecs, or a residual is left from when they had."""
    if any(its.residual is None for its in inputs.values()):
        return False
    left = any(its.residual is not None and its.residual.values is not None for its in inputs.values())
    return left or any(role_in(plan, group, name).encodes for name in group.members)


class CodedReduction:
    """A group's reduction through the plan's codecs. Adds each edge's bytes to the counters, coded and plain."""

    def __init__(
        self,
        plan: Plan,
        group: Group,
        inputs: Mapping[str, RoundInput],
        coded: Counter[TreeEdge],
        plain: Counter[TreeEdge],
    ) -> None:
        first = next(iter(inputs.values())).values
        self._layout = Layout(group, plan.values_bytes(), len(first), first.element_size())
        self._members = {name: _Member(plan, group, name, its, self._layout) for name, its in inputs.items()}
        self._coded = coded
        self._plain = plain

    def run(self) -> None:
        """Reduce all chunks, one after the other."""
        for number in range(len(self._layout.chunks)):
            outgoing = [(name, send) for name, member in self._members.items() for send in member.add_local(number)]
            while outgoing:
                name, send = outgoing.pop(0)
                outgoing += self._send(name, send)

    def _send(self, name: str, send: OutgoingChunk) -> list[tuple[str, OutgoingChunk]]:
        """Send a member's chunk. Returns the chunks that others send because of it; a mean goes to all at once."""
        member = self._members[name]
        data, values, scale = member.encoded(send)
        plain = values.numel() * values.element_size()
        if send.kind is Kind.PARTIAL:
            (parent,) = send.peers
            self._count((name, parent, False), len(data), plain)
            partial = PartialSum(values, scale, member.reduction.sealed(send.part))
            return [(parent, its) for its in self._members[parent].reduction.add(send.number, name, partial)]
        passing = [(name, send)]
        while passing:
            at, its = passing.pop(0)
            for child in self._members[at].reduction.tree_role(send.number).mean_to:
                self._count((at, child, True), len(data), plain)
                passing.append((child, its))
            self._members[at].reduction.accept(send.number, send.part, values)
        return []

    def _count(self, edge: TreeEdge, coded: int, plain: int) -> None:
        self._coded[edge] += coded
        self._plain[edge] += plain


class _Member:
    """A member in a reduction: its sums, and its encoder."""

    def __init__(self, plan: Plan, group: Group, name: str, given: RoundInput, layout: Layout) -> None:
        sums = Sums(layout.elements, given.values.dtype, Scratch())
        self.reduction = Reduction(plan.epoch, plan.members, role_in(plan, group, name), layout, sums, in_order=True)
        if given.residual is not None:
            given.residual.open(layout.elements)
        self.reduction.start(Contribution(given.values, given.weight, lambda: plan.epoch, lambda: plan.epoch))
        self._encoder = Encoder(sums, given.residual)

    def add_local(self, number: int) -> Sequence[OutgoingChunk]:
        return self.reduction.add_local(number, self._encoder.take_residual(self.reduction.layout.chunks[number]))

    def encoded(self, send: OutgoingChunk) -> tuple[memoryview, torch.Tensor, float]:
        """Return a chunk's bytes, its values as receivers decode them, and the factor on those values."""
        chunk, state = self.reduction.layout.chunks[send.number], self.reduction.chunk(send.number)
        role = self.reduction.tree_role(send.number)
        is_mean = send.kind is Kind.MEAN
        codec = role.mean_codec if is_mean else role.partial_codec
        unsummed = None if is_mean else state.unsummed
        made = self._encoder.encode(chunk, send.kind, send.part, codec, unsummed)
        return made.data, decode(made.code, made.data, len(chunk)), made.scale
