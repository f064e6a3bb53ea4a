"""Means of members' tensors in one process: exact ones, or as codecs leave them on their way through a plan's trees.

    leaf --encode, decode--> relay --add, encode, decode--> root: the mean, encoded once --decode--> all members

What is added up, encoded and owed is so by the code of the members themselves (`sync.allreduce`); what is left out are
frames, queues and time.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from testbed.plan import Group, Plan
from testbed.simulation.round_model import Payload, TreeEdge
from testbed.sync.allreduce.chunk import PartialSum
from testbed.sync.allreduce.header import Kind
from testbed.sync.allreduce.layout import Layout
from testbed.sync.allreduce.payload import Encoder, decode
from testbed.sync.allreduce.reduction import Contribution, OutgoingChunk, Reduction
from testbed.sync.allreduce.role import role_in
from testbed.sync.allreduce.sums import Sums
from testbed.sync.codecs import Residual
from testbed.sync.transport import Scratch


@dataclass(frozen=True, slots=True)
class Given:
    """What a member gives to a round, and where it wants the mean: flat."""

    values: torch.Tensor
    weight: float
    residual: Residual | None


def reduce(plan: Plan, number: int, given: Mapping[str, Given]) -> Payload:
    """Replace what members gave to a round by the mean of those whom they reduce with; what that moves."""
    first = next(iter(given.values()))
    wire: dict[TreeEdge, list[int]] = defaultdict(lambda: [0, 0])
    for group in [plan.whole] if plan.among_all(number) else plan.groups:
        its = {name: given[name] for name in group.members}
        if _coded(plan, group, its):
            through_codecs(plan, group, its, wire)
        else:
            exactly(list(its.values()))
    size = first.values.numel() * first.values.element_size()
    return Payload(size, {way: coded / plain for way, (coded, plain) in wire.items()})


def exactly(given: Sequence[Given]) -> None:
    """The mean in float32, summed up in the members' order, so that it is the same each time."""
    total = sum(its.weight for its in given)
    mean = torch.zeros_like(given[0].values)
    for its in given:
        mean.add_(its.values, alpha=its.weight / total)
    for its in given:
        its.values.copy_(mean)


def _coded(plan: Plan, group: Group, given: Mapping[str, Given]) -> bool:
    """Whether codecs are on the way, or anything is owed since they were."""
    if any(its.residual is None for its in given.values()):
        return False
    owed = any(its.residual is not None and its.residual.values is not None for its in given.values())
    return owed or any(role_in(plan, group, name).encodes for name in group.members)


def through_codecs(plan: Plan, group: Group, given: Mapping[str, Given], wire: dict[TreeEdge, list[int]]) -> None:
    """The mean as the plan's codecs leave it; to `wire` come the bytes of each way, coded and plain."""
    first = next(iter(given.values())).values
    layout = Layout(group, plan.chunk_bytes, len(first), first.element_size())
    members = {name: _Member(plan, group, name, its, layout) for name, its in given.items()}
    for number in range(len(layout.chunks)):
        outgoing = [(name, send) for name, member in members.items() for send in member.add_local(number)]
        while outgoing:
            name, send = outgoing.pop(0)
            outgoing += _sent(members, name, send, wire)


class _Member:
    """A member in a round: its sums, and its encoder."""

    def __init__(self, plan: Plan, group: Group, name: str, given: Given, layout: Layout) -> None:
        self.name = name
        self._sums = Sums(layout.elements, given.values.dtype, Scratch())
        role = role_in(plan, group, name)
        self.reduction = Reduction(plan.epoch, plan.members, role, layout, self._sums, in_order=True)
        if given.residual is not None:
            given.residual.open(layout.elements)
        epoch = plan.epoch
        self.reduction.enter(Contribution(given.values, given.weight, lambda: epoch, lambda: epoch))
        self._encoder = Encoder(self._sums, given.residual)

    def add_local(self, number: int) -> Sequence[OutgoingChunk]:
        return self.reduction.add_local(number, self._encoder.owed(self.reduction.layout.chunks[number]))

    def encoded(self, send: OutgoingChunk) -> tuple[memoryview, torch.Tensor, float]:
        """A chunk's bytes, its values as others will have them, and what these are to be multiplied with."""
        chunk, state = self.reduction.layout.chunks[send.number], self.reduction.chunk(send.number)
        role = self.reduction.tree_role(send.number)
        is_mean = send.kind is Kind.MEAN
        codec = role.mean_codec if is_mean else role.partial_codec
        unsummed = None if is_mean else state.unsummed
        made = self._encoder.encode(chunk, send.kind, send.part, codec, unsummed)
        return made.data, decode(made.code, made.data, len(chunk)), made.scale


def _sent(
    members: Mapping[str, _Member], name: str, send: OutgoingChunk, wire: dict[TreeEdge, list[int]]
) -> list[tuple[str, OutgoingChunk]]:
    """A chunk leaves a member: what leaves others because of it. A mean goes to all below at once."""
    member = members[name]
    data, values, scale = member.encoded(send)
    plain = values.numel() * values.element_size()
    if send.kind is Kind.PARTIAL:
        (parent,) = send.peers
        _count(wire, (name, parent, False), len(data), plain)
        part = member.reduction.sealed(send.part)
        return [
            (parent, its) for its in members[parent].reduction.add(send.number, name, PartialSum(values, scale, part))
        ]
    passing = [(name, send)]
    while passing:
        at, its = passing.pop(0)
        for child in members[at].reduction.tree_role(send.number).mean_to:
            _count(wire, (at, child, True), len(data), plain)
            passing.append((child, its))
        members[at].reduction.accept(send.number, send.part, values)
    return []


def _count(wire: dict[TreeEdge, list[int]], way: TreeEdge, coded: int, plain: int) -> None:
    wire[way][0] += coded
    wire[way][1] += plain
