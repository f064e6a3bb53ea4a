"""The state machine of sums, driven by hand: all members of a plan, with chunks arriving in any order."""

from __future__ import annotations

import random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from testbed.plan import Plan
from testbed.sync.duty import duties
from testbed.sync.errors import FrameError, SyncError
from testbed.sync.layout import Layout
from testbed.sync.reduction import Part, Reduction
from tests.sync.plans import chain, names, random_plan, star

pytestmark = pytest.mark.unit


def reduction(plan: Plan, member: str, elements: int) -> Reduction:
    return Reduction(plan, duties(plan, member), Layout(plan, elements, 4), torch.empty(elements))


class Wire:
    """Delivers chunks among reductions, in an order that `draw` chooses."""

    def __init__(self, plan: Plan, elements: int, draw: random.Random) -> None:
        self.members = {member: reduction(plan, member, elements) for member in plan.members}
        self.values = {member: torch.randn(elements) for member in plan.members}
        self.weights = {member: draw.uniform(0.1, 9) for member in plan.members}
        ready = draw.sample(range(plan.epoch, 9), draw.randint(1, 3))
        self.successor = {member: draw.choice(ready) for member in plan.members}
        chunks = range(len(next(iter(self.members.values())).layout.chunks))
        self.pending = [("own", member, number, "", None, None) for member in plan.members for number in chunks]
        self.draw = draw

    def run(self) -> None:
        while self.pending:
            kind, member, number, peer, values, part = self.pending.pop(self.draw.randrange(len(self.pending)))
            state = self.members[member]
            if kind == "own":
                chunk = state.layout.chunks[number]
                own = self.values[member][chunk.start : chunk.stop]
                self.complete(member, number, state.own(number, own, self.weights[member], self.successor[member]))
            elif kind == "partial":
                self.complete(member, number, state.add(number, peer, values, part))
            else:
                assert state.accept(number, peer, values, part)
                self.broadcast(member, number, part)

    def complete(self, member: str, number: int, part: Part | None) -> None:
        if part is None:
            return
        state = self.members[member]
        duty = state.duties[state.layout.chunks[number].tree]
        if duty.partials_to is None:
            self.broadcast(member, number, state.finish(number))
        else:
            self.pending.append(("partial", duty.partials_to, number, member, state.view(number).clone(), part))

    def broadcast(self, member: str, number: int, part: Part) -> None:
        state = self.members[member]
        for child in state.duties[state.layout.chunks[number].tree].mean_to:
            self.pending.append(("mean", child, number, member, state.view(number).clone(), part))


@given(st.integers(0, 2**32), st.integers(1, 7), st.integers(1, 3000))
def test_any_order_over_any_trees_gives_the_mean_to_all(seed: int, count: int, elements: int) -> None:
    draw = random.Random(seed)
    wire = Wire(random_plan(draw, names(count), epoch=3, chunk_bytes=1024), elements, draw)
    wire.run()
    total = sum(wire.weights.values())
    expected = sum(wire.values[m].double() * wire.weights[m] for m in wire.members) / total
    for state in wire.members.values():
        whole = torch.cat([state.view(number) for number in range(len(state.layout.chunks))])
        assert (whole - expected).abs().max() <= 1e-5
        assert torch.equal(
            whole, torch.cat([next(iter(wire.members.values())).view(n) for n in range(len(state.layout.chunks))])
        )
        said = set(wire.successor.values())
        assert state.agreed == (min(said) if len(said) == 1 else 3)
        assert not state.awaited() and not state.lost and not state.duplicated


MEMBERS = names(3)
STAR = Plan(0, MEMBERS, (star(MEMBERS, "m0"),))
ONES = torch.ones(5)


def test_a_partial_sum_that_comes_twice_is_counted_and_left_out() -> None:
    root = reduction(STAR, "m0", 5)
    assert root.add(0, "m1", ONES, Part(0b010, 1.0, 0)) is None
    assert root.add(0, "m1", ONES, Part(0b010, 1.0, 0)) is None
    assert root.own(0, ONES, 1.0, 0) is None
    assert root.add(0, "m2", ONES, Part(0b100, 1.0, 0)) == Part(0b111, 3.0, 0)
    root.finish(0)
    assert torch.equal(root.view(0), ONES) and root.duplicated == 0b010


def test_a_mean_that_comes_twice_is_counted_and_left_out() -> None:
    leaf = reduction(STAR, "m1", 5)
    assert leaf.accept(0, "m0", ONES, Part(0b111, 3.0, 0))
    assert not leaf.accept(0, "m0", ONES * 2, Part(0b111, 3.0, 0))
    assert torch.equal(leaf.view(0), ONES) and leaf.duplicated == 0b111


def test_a_mean_that_leaves_a_member_out_is_counted() -> None:
    leaf = reduction(STAR, "m1", 5)
    leaf.accept(0, "m0", ONES, Part(0b011, 2.0, 0))
    assert leaf.names(leaf.lost) == ["m2"]


def test_who_owes_what() -> None:
    middle = reduction(Plan(0, MEMBERS, (chain(MEMBERS),)), "m1", 5)
    assert middle.awaited() == {"m0": "the mean", "m2": "its partial sum"}
    middle.add(0, "m2", ONES, Part(0b100, 1.0, 0))
    assert middle.awaited() == {"m0": "the mean"}


@pytest.mark.parametrize(("peer", "contributors"), [("m2", 0b010), ("m1", 0b110), ("m1", 0), ("m1", 0b1010)], ids=str)
def test_updates_from_where_they_do_not_belong_are_refused(peer: str, contributors: int) -> None:
    with pytest.raises(FrameError, match="no business"):
        reduction(STAR, "m0", 5).add(0, peer, ONES, Part(contributors, 1.0, 0))


def test_a_mean_from_another_than_the_parent_is_refused() -> None:
    with pytest.raises(FrameError, match="no business"):
        reduction(STAR, "m1", 5).accept(0, "m2", ONES, Part(0b111, 3.0, 0))


def test_means_must_agree_on_the_epoch_that_all_hold() -> None:
    leaf = reduction(Plan(0, MEMBERS, (star(MEMBERS, "m0"),), 1024), "m1", 300)
    leaf.accept(0, "m0", torch.ones(256), Part(0b111, 3.0, 4))
    with pytest.raises(FrameError, match="4 and 5"):
        leaf.accept(1, "m0", torch.ones(44), Part(0b111, 3.0, 5))


def test_no_weight_no_mean() -> None:
    alone = reduction(Plan(0, names(1), (star(names(1), "m0"),)), "m0", 5)
    alone.own(0, ONES, 0.0, 0)
    with pytest.raises(SyncError, match="add up to 0"):
        alone.finish(0)


@given(st.integers(0, 2**32), st.integers(1, 5000), st.sampled_from([4, 8]))
def test_a_layout_finds_its_chunks_and_no_others(seed: int, elements: int, itemsize: int) -> None:
    draw = random.Random(seed)
    layout = Layout(random_plan(draw, names(4), 0, 1024), elements, itemsize)
    assert sum(chunk.stop - chunk.start for chunk in layout.chunks) == elements
    assert sorted(layout.front_first) == list(range(len(layout.chunks)))
    for number, chunk in enumerate(layout.chunks):
        assert len(chunk) * itemsize <= 1024 and layout.find(chunk.tree, chunk.start) == number
        for wrong in ((chunk.tree, chunk.start + 1), (chunk.tree, elements), (99, 0)):
            with pytest.raises(FrameError):
                layout.find(*wrong)
