"""The reductions of all members of a plan, with chunks delivered by hand in any order."""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from testbed.plan import Plan
from testbed.sync.allreduce.chunk import Part, PartialSum
from testbed.sync.allreduce.chunk_codec import Kind, Sums
from testbed.sync.allreduce.reduction import Contribution, OutgoingChunk, Reduction
from testbed.sync.allreduce.role import Layout, role_in
from testbed.sync.buffers import Scratch
from testbed.sync.errors import FrameError, SyncError
from tests.sync.plans import chain, names, random_plan, star

pytestmark = pytest.mark.pure


def reduction(
    plan: Plan, member: str, elements: int, in_order: bool = False, dtype: torch.dtype = torch.float32
) -> Reduction:
    layout = Layout(plan.whole, plan.chunk_bytes, elements, dtype.itemsize)
    role = role_in(plan, plan.whole, member)
    return Reduction(plan.epoch, plan.members, role, layout, Sums(elements, dtype, Scratch()), in_order)


def give(state: Reduction, number: int, peer: str, values: torch.Tensor, part: Part) -> bool:
    """Deliver a mean. Returns whether it is the first of its chunk."""
    state.chunk(number).check_mean(peer)
    return bool(state.accept(number, part, values))


def partial_sum(state: Reduction, number: int) -> torch.Tensor:
    """Return the sum that a member sends, which may be its own values alone."""
    own = state.chunk(number).unsummed
    return own.values * own.weight if own is not None else state.chunk(number).sum.clone()


class Wire:
    """Delivers chunks among reductions, in an order that `draw` chooses."""

    def __init__(self, plan: Plan, elements: int, draw: random.Random, in_order: bool = False) -> None:
        self.members = {member: reduction(plan, member, elements, in_order) for member in plan.members}
        self.values = {
            member: torch.randn(elements, generator=torch.Generator().manual_seed(number))
            for number, member in enumerate(plan.members)
        }
        self.contributed = {member: values.clone() for member, values in self.values.items()}
        self.weights = {member: draw.choice([1.0, draw.uniform(0.1, 9)]) for member in plan.members}
        epochs = draw.sample(range(plan.epoch, 9), draw.randint(1, 3))
        self.successor = {member: draw.choice(epochs) for member in plan.members}
        self.confirmed = plan.epoch
        for member, state in self.members.items():
            ready = partial(self.ready, member)
            state.start(Contribution(self.values[member], self.weights[member], ready, lambda: self.confirmed))
        chunks = range(len(next(iter(self.members.values())).layout.chunks))
        self.pending = [("own", member, number, "", None, None) for member in plan.members for number in chunks]
        self.draw = draw

    def ready(self, member: str) -> int:
        """Return the epoch that a member is ready to use now."""
        return self.successor[member]

    def run(self) -> None:
        while self.pending:
            self.step()

    def step(self, ended: Collection[str] = ()) -> None:
        """Deliver a chunk, unless its receiver is in `ended`."""
        kind, member, number, peer, values, part = self.pending.pop(self.draw.randrange(len(self.pending)))
        state = self.members[member]
        if member in ended:
            return
        if kind == "own":
            self.send(member, state.add_local(number))
        elif kind is Kind.PARTIAL:
            scale = self.draw.choice([1.0, 0.5])
            self.send(member, state.add(number, peer, PartialSum(values / scale, scale, part)))
        else:
            state.chunk(number).check_mean(peer)
            sends = state.accept(number, part, values)
            assert sends
            self.deliver(member, sends[0], values)

    def send(self, member: str, sends: Sequence[OutgoingChunk]) -> None:
        """Send a member's chunks, with the partial sums of this moment; a root accepts the mean itself first."""
        state = self.members[member]
        for send in sends:
            if send.kind is Kind.PARTIAL:
                sealed = send._replace(part=state.sealed(send.part))
                self.deliver(member, sealed, partial_sum(state, send.number))
            else:
                mean = state.chunk(send.number).sum.clone()
                assert state.accept(send.number, send.part, mean) == (send,)
                self.deliver(member, send, mean)

    def deliver(self, member: str, send: OutgoingChunk, values: torch.Tensor) -> None:
        for peer in send.peers:
            self.pending.append((send.kind, peer, send.number, member, values, send.part))


@given(st.integers(0, 2**32), st.integers(1, 7), st.integers(1, 3000))
def test_any_order_over_any_trees_gives_the_mean_to_all(seed: int, count: int, elements: int) -> None:
    draw = random.Random(seed)
    wire = Wire(random_plan(draw, names(count), epoch=3, chunk_bytes=1024), elements, draw)
    wire.run()
    total = sum(wire.weights.values())
    expected = sum(wire.contributed[m].double() * wire.weights[m] for m in wire.members) / total
    for member, state in wire.members.items():
        assert (wire.values[member] - expected).abs().max() <= 1e-5
        assert torch.equal(wire.values[member], wire.values["m0"])
        said = set(wire.successor.values())
        assert state.outcome.agreed == (min(said) if len(said) == 1 else 3)
        assert not state.missing() and not state.outcome.lost and not state.duplicated


@given(st.integers(0, 2**32), st.integers(1, 7), st.integers(300, 3000))
def test_a_member_that_gets_a_plan_during_a_round_may_use_it_in_the_next(seed: int, count: int, elements: int) -> None:
    """Members become ready in turn while chunks are in flight; in the end all agree on an epoch that all hold."""
    draw = random.Random(seed)
    wire = Wire(random_plan(draw, names(count), epoch=3, chunk_bytes=1024), elements, draw)
    wire.successor = dict.fromkeys(wire.members, 3)
    steps, late = 0, draw.randrange(400)
    send, all_ready = wire.send, False

    def step(member: str, sends: Sequence[OutgoingChunk]) -> None:
        nonlocal steps, all_ready
        steps += 1
        if steps > late:
            wire.successor[draw.choice(list(wire.members))] = 4
        all_ready = all_ready or set(wire.successor.values()) == {4}
        if all_ready and draw.random() < 0.5:
            wire.confirmed = 4
        send(member, sends)

    wire.send = step  # type: ignore[method-assign]
    wire.run()
    agreed = {state.outcome.agreed for state in wire.members.values()}
    assert len(agreed) == 1
    assert agreed == {3} or all_ready, "members agreed on a plan that some member does not hold"


@given(st.integers(0, 2**32), st.integers(2, 7))
def test_in_order_the_bits_do_not_depend_on_which_member_is_first(seed: int, count: int) -> None:
    plan = random_plan(random.Random(seed), names(count), epoch=3, chunk_bytes=1024)
    results = []
    for order in (1, 2):
        draw = random.Random(seed)
        wire = Wire(plan, 700, draw, in_order=True)
        wire.draw = random.Random(order)
        wire.weights = dict.fromkeys(plan.members, 1.7)
        wire.run()
        results.append(wire.values["m0"])
    assert torch.equal(*results)


MEMBERS = names(3)
STAR = Plan(0, MEMBERS, (star(MEMBERS, "m0"),))
ONES = torch.ones(5)


def entered(plan: Plan, member: str, elements: int = 5, weight: float = 1.0, fixed: bool = False) -> Reduction:
    """Return the reduction of a member that has added its values."""
    state = reduction(plan, member, elements)
    state.start(Contribution(torch.ones(elements), weight, lambda: plan.epoch, lambda: plan.epoch, fixed))
    for number in range(len(state.layout.chunks)):
        state.add_local(number)
    return state


def test_a_partial_sum_that_comes_twice_is_counted_and_left_out() -> None:
    root = entered(STAR, "m0")
    assert not root.add(0, "m1", PartialSum(ONES, 1.0, Part(0b010, 1.0, 0)))
    assert not root.add(0, "m1", PartialSum(ONES, 1.0, Part(0b010, 1.0, 0)))
    (send,) = root.add(0, "m2", PartialSum(ONES, 1.0, Part(0b100, 1.0, 0)))
    assert send == OutgoingChunk(0, Kind.MEAN, ("m1", "m2"), Part(0b111, 3.0, 0))
    assert torch.equal(root.chunk(0).sum, ONES) and root.duplicated == 0b010


@pytest.mark.parametrize("member", ["m0", "m1"], ids=["of the root", "of a leaf"])
@pytest.mark.parametrize("own_first", [True, False])
def test_values_without_weight_do_not_count_whatever_they_are(member: str, own_first: bool) -> None:
    """A member without samples has weight 0, and its mean gradient is NaN."""
    root, nothing = reduction(STAR, "m0", 5), torch.full((5,), torch.nan)
    own, own_weight = (nothing, 0.0) if member == "m0" else (ONES, 1.0)
    other, weight = (nothing, 0.0) if member == "m1" else (ONES, 1.0)
    root.start(Contribution(own.clone(), own_weight, lambda: 0, lambda: 0))
    if own_first:
        root.add_local(0)
    root.add(0, "m1", PartialSum(other, weight, Part(0b010, weight, 0)))
    root.add(0, "m2", PartialSum(ONES, 1.0, Part(0b100, 1.0, 0)))
    if not own_first:
        root.add_local(0)
    assert torch.equal(root.chunk(0).sum, ONES)


def test_values_without_weight_do_not_count_beside_a_residual() -> None:
    root = reduction(Plan(0, names(2), (star(names(2), "m0"),)), "m0", 5)
    root.start(Contribution(torch.full((5,), torch.nan), 0.0, lambda: 0, lambda: 0))
    root.add_local(0, torch.zeros(5))
    root.add(0, "m1", PartialSum(ONES, 1.0, Part(0b10, 1.0, 0)))
    assert torch.equal(root.chunk(0).sum, ONES)


def test_a_mean_that_comes_twice_is_counted_and_left_out() -> None:
    leaf = entered(STAR, "m1")
    assert give(leaf, 0, "m0", ONES, Part(0b111, 3.0, 0))
    assert not give(leaf, 0, "m0", ONES * 2, Part(0b111, 3.0, 0))
    assert torch.equal(leaf.contribution.values, ONES) and leaf.duplicated == 0b111


def test_a_mean_that_leaves_a_member_out_is_counted() -> None:
    leaf = entered(STAR, "m1")
    give(leaf, 0, "m0", ONES, Part(0b011, 2.0, 0))
    assert leaf.names(leaf.outcome.lost) == ["m2"]


def test_a_mean_before_the_sum_is_refused() -> None:
    """The mean would replace values that were not sent yet."""
    with pytest.raises(FrameError) as caught:
        reduction(STAR, "m1", 5).chunk(0).check_mean("m0")
    assert (caught.value.rule, caught.value.member) == ("mean-early", "m0")


def test_values_of_chunks_that_are_not_final_stay_what_was_contributed() -> None:
    plan = Plan(0, MEMBERS, (star(MEMBERS, "m0"),), 1024)
    values = torch.arange(300, dtype=torch.float32)
    leaf = reduction(plan, "m1", 300)
    leaf.start(Contribution(values, 2.0, lambda: 0, lambda: 0))
    for number in range(2):
        leaf.add_local(number)
    give(leaf, 1, "m0", torch.zeros(44), Part(0b111, 3.0, 0))
    assert torch.equal(values[:256], torch.arange(256.0)) and not values[256:].any()


def test_a_key_is_broadcast_when_all_of_it_is_reduced() -> None:
    tree = replace(star(MEMBERS, "m0"), keys=(0.5, 0.25, 0.25))
    root = entered(Plan(0, MEMBERS, (tree,), 1024), "m0", 2048)
    assert [chunk.key for chunk in root.layout.chunks] == [0] * 4 + [1] * 2 + [2] * 2
    finished = []
    for number in (3, 4, 0, 1, 5, 7, 2, 6):
        assert not root.add(number, "m1", PartialSum(torch.ones(256), 1.0, Part(0b010, 1.0, 0)))
        sends = root.add(number, "m2", PartialSum(torch.ones(256), 1.0, Part(0b100, 1.0, 0)))
        finished.append([send.number for send in sends])
    assert finished == [[], [], [], [], [4, 5], [], [0, 1, 2, 3], [6, 7]]


def test_sixteen_bits_are_summed_in_float32() -> None:
    """256 + 1 is 256 in bfloat16."""
    root = reduction(STAR, "m0", 5, dtype=torch.bfloat16)
    values = torch.full((5,), 256, dtype=torch.bfloat16)
    root.start(Contribution(values, 1.0, lambda: 0, lambda: 0))
    root.add_local(0)
    for peer, bit in (("m1", 0b010), ("m2", 0b100)):
        root.add(0, peer, PartialSum(torch.ones(5, dtype=torch.bfloat16), 4.0, Part(bit, 4.0, 0)))
    assert torch.allclose(root.chunk(0).sum, torch.full((5,), 264 / 9))


def test_missing_messages_are_named_by_peer() -> None:
    middle = reduction(Plan(0, MEMBERS, (chain(MEMBERS),)), "m1", 5)
    assert middle.missing() == {"m0": "the mean", "m2": "its partial sum"}
    middle.add(0, "m2", PartialSum(ONES, 1.0, Part(0b100, 1.0, 0)))
    assert middle.missing() == {"m0": "the mean"}


@pytest.mark.parametrize(("peer", "contributors"), [("m2", 0b010), ("m1", 0b110), ("m1", 0), ("m1", 0b1010)], ids=str)
def test_updates_from_where_they_do_not_belong_are_refused(peer: str, contributors: int) -> None:
    with pytest.raises(FrameError) as caught:
        reduction(STAR, "m0", 5).add(0, peer, PartialSum(ONES, 1.0, Part(contributors, 1.0, 0)))
    assert (caught.value.rule, caught.value.member) == ("unexpected-sender", peer)


def test_a_mean_from_another_than_the_parent_is_refused() -> None:
    with pytest.raises(FrameError) as caught:
        entered(STAR, "m1").chunk(0).check_mean("m2")
    assert (caught.value.rule, caught.value.member) == ("unexpected-sender", "m2")


def test_the_newest_epoch_that_all_hold_counts() -> None:
    leaf = entered(Plan(0, MEMBERS, (star(MEMBERS, "m0"),), 1024), "m1", 300)
    assert leaf.outcome.agreed is None
    leaf.accept(0, Part(0b111, 3.0, 0), torch.ones(256))
    assert leaf.outcome.agreed == 0
    leaf.accept(1, Part(0b111, 3.0, 5), torch.ones(44))
    assert leaf.outcome.agreed == 5


def test_where_rounds_overlap_means_must_agree_on_the_epoch_that_all_hold() -> None:
    leaf = entered(Plan(0, MEMBERS, (star(MEMBERS, "m0"),), 1024), "m1", 300, fixed=True)
    leaf.accept(0, Part(0b111, 3.0, 4), torch.ones(256))
    with pytest.raises(FrameError) as caught:
        leaf.accept(1, Part(0b111, 3.0, 5), torch.ones(44))
    assert (caught.value.rule, caught.value.given) == ("epochs-disagree", (4, 5))


def test_no_weight_no_mean() -> None:
    with pytest.raises(SyncError) as caught:
        entered(Plan(0, names(1), (star(names(1), "m0"),)), "m0", weight=0.0)
    assert caught.value.rule == "no-weight"


@given(st.integers(0, 2**32), st.integers(1, 5000), st.sampled_from([4, 8]))
def test_a_layout_finds_its_chunks_and_no_others(seed: int, elements: int, itemsize: int) -> None:
    draw = random.Random(seed)
    layout = Layout(random_plan(draw, names(4), 0).whole, 1024, elements, itemsize)
    assert sum(chunk.stop - chunk.start for chunk in layout.chunks) == elements
    assert sorted(layout.front_first) == list(range(len(layout.chunks)))
    for number, chunk in enumerate(layout.chunks):
        assert len(chunk) * itemsize <= 1024 and layout.find(chunk.tree, chunk.start) == number
        for wrong in ((chunk.tree, chunk.start + 1 if len(chunk) > 1 else elements), (chunk.tree, elements), (99, 0)):
            with pytest.raises(FrameError):
                layout.find(*wrong)


def test_slices_of_unequal_length_advance_alike() -> None:
    """With six and two chunks, the second chunk of the short slice comes when the long one is half done."""
    of = names(3)
    plan = Plan(0, of, (replace(star(of, "m0"), share=0.75), replace(star(of, "m1"), share=0.25)), 1024)
    layout = Layout(plan.whole, plan.chunk_bytes, 8 * 256, 4)
    assert [layout.chunks[number].tree for number in layout.front_first] == [0, 1, 0, 0, 0, 1, 0, 0]
