"""Deaths in the midst of a round, at any step of it: what survivors recover, without threads, sockets or a clock."""

from __future__ import annotations

import random

import pytest
import torch

from testbed.protocol import Holding, MeanSlice
from testbed.sync.allreduce import spans
from testbed.sync.allreduce.atomic_rounds import RecoveryOrders, orders_for
from testbed.sync.allreduce.attempt import Attempt
from testbed.sync.allreduce.reduction import Contribution
from tests.sync.allreduce.test_reduction import Wire
from tests.sync.plans import names, random_plan

pytestmark = pytest.mark.pure

ELEMENTS = 3000


def interrupted(seed: int) -> tuple[Wire, dict[str, Attempt], str]:
    """A round in which a member dies after some steps; the others are told one after the other to abort."""
    draw = random.Random(seed)
    wire = Wire(random_plan(draw, names(draw.randint(3, 6)), epoch=3, chunk_bytes=1024), ELEMENTS, draw)
    attempts = {member: Attempt(1, wire.values[member], wire.weights[member], None) for member in wire.members}
    for attempt in attempts.values():
        attempt.begin()
    dead = draw.choice(list(wire.members))
    for _ in range(draw.randint(0, 40 * len(wire.members))):
        if wire.pending:
            wire.step()
    ended = {dead}
    wire.pending = [chunk for chunk in wire.pending if chunk[3] != dead or draw.random() < 0.5]  # lost with it
    survivors = [member for member in wire.members if member != dead]
    draw.shuffle(survivors)
    for member in survivors:
        for _ in range(draw.choice([0, 0, 1, 5, 50])):
            if wire.pending:
                wire.step(ended)
        ended.add(member)
        attempts[member].absorb(wire.members[member].finals())
    return wire, {member: attempts[member] for member in sorted(survivors)}, dead


def holding_of(member: str, attempt: Attempt) -> Holding:
    if attempt.whole:
        return Holding(member, 4, 1, over=True)
    return Holding(member, 4, 1, over=False, elements=ELEMENTS, final=attempt.final)


def fetch_all(attempts: dict[str, Attempt], orders: dict[str, RecoveryOrders]) -> None:
    """Give each survivor the means that its orders have it fetch; whoever holds one holds it already."""
    held = {member: (attempt.values.clone(), attempt.slices) for member, attempt in attempts.items()}
    for member, attempt in attempts.items():
        for peer, start, stop in orders[member].fetch if not attempt.whole else ():
            values, slices = held[peer]
            assert not spans.minus([(start, stop)], spans.union((its.start, its.stop) for its in slices))
            attempt.put(start, values[start:stop], slices)


def reduce_rest(wire: Wire, attempts: dict[str, Attempt], orders: dict[str, RecoveryOrders], seed: int) -> None:
    """Reduce among the survivors what nobody holds."""
    whole: spans.Spans = ((0, ELEMENTS),)
    lefts = {whole if its.anew else its.left for its in orders.values() if its.anew or its.left}
    if not lefts:
        return
    [left] = lefts
    draw = random.Random(seed)
    again = Wire(random_plan(draw, tuple(attempts), epoch=4, chunk_bytes=1024), spans.count(left), draw)
    for member, attempt in attempts.items():
        packed, _ = attempt.pack(left)
        again.values[member] = packed
        again.members[member].enter(Contribution(packed, wire.weights[member], lambda: 4, lambda: 4))
    again.run()
    for member, attempt in attempts.items():
        attempt.absorb(again.members[member].finals())
        attempt.again()


def mean_of(wire: Wire, part: MeanSlice) -> torch.Tensor:
    total = sum(
        wire.contributed[member][part.start : part.stop].double() * wire.weights[member] for member in part.members
    )
    return total / sum(wire.weights[member] for member in part.members)


def test_wherever_in_a_round_a_member_dies_the_others_end_with_the_same_right_bits() -> None:
    """Each element's mean is of all, or of all but the dead member, and slices say which."""
    kept = left = mixed = whole = 0
    for seed in range(150):
        wire, attempts, dead = interrupted(seed)
        whole += any(attempt.whole for attempt in attempts.values())
        holdings = [holding_of(member, attempt) for member, attempt in attempts.items()]
        orders = {member: orders_for(member, holdings) for member in attempts}
        fetch_all(attempts, orders)
        reduce_rest(wire, attempts, orders, seed)
        first, *others = attempts.values()
        assert first.whole and all(other.whole for other in others), f"seed {seed}"
        assert all(torch.equal(first.values, other.values) for other in others), f"seed {seed}"
        for part in first.slices:
            assert set(part.members) in (set(wire.members), set(attempts)), f"seed {seed}"
            assert part.weight == pytest.approx(sum(wire.weights[member] for member in part.members))
            assert (first.values[part.start : part.stop] - mean_of(wire, part)).abs().max() < 1e-5, f"seed {seed}"
        of_dead = {dead in part.members for part in first.slices}
        kept, left, mixed = kept + (of_dead == {True}), left + (of_dead == {False}), mixed + (len(of_dead) == 2)
    assert min(kept, left, mixed, whole) >= 5, "the seeds reach all kinds of moments"
