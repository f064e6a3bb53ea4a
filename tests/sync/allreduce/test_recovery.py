"""The rule of atomic rounds, without a network: the survivors' orders, and their values afterwards."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from dataclasses import replace
from math import inf
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from testbed.plan import Plan
from testbed.protocol import Holding, MeanSlice
from testbed.sync.allreduce import recovery, spans
from testbed.sync.allreduce.chunk import Part
from testbed.sync.allreduce.chunk_codec import Encoder, Kind, Sums
from testbed.sync.allreduce.fetch import FetchAnswer, MeansNote
from testbed.sync.allreduce.recovery import Attempt, RecoveryOrders, joined, orders_for, spreading_pairs
from testbed.sync.allreduce.reduction import Contribution
from testbed.sync.allreduce.role import Chunk
from testbed.sync.buffers import Scratch
from testbed.sync.codecs import Residual
from testbed.sync.codecs.codec import Half, bytes_of
from testbed.sync.errors import Halted, SyncError
from testbed.sync.transport import TransportSettings
from tests.sync.allreduce.test_reduction import Wire
from tests.sync.allreduce.test_spans import elements
from tests.sync.plans import names, random_plan, star

pytestmark = pytest.mark.pure

ELEMENTS = 40
#: The elements of the rounds in which a member dies.
DEATH_ELEMENTS = 3000


@given(st.integers(0, 2**32), st.integers(1, 6))
def test_all_survivors_end_with_every_element_once(seed: int, count: int) -> None:
    """Some members are past the round, others hold a part of it: each element is kept, fetched, or reduced again."""
    draw = random.Random(seed)
    ahead = draw.random() < 0.5
    holdings = []
    for member in names(count):
        if ahead and draw.random() < 0.5:
            over = Holding(member, 9, 7, True), Holding(member, 9, 7, True, ELEMENTS, ((0, ELEMENTS),))
            holdings.append(draw.choice([*over, Holding(member, 9, 8, False, ELEMENTS)]))
            continue
        some = [(start, start + 4) for start in range(0, ELEMENTS, 4) if draw.random() < 0.5]
        holdings.append(Holding(member, 9, 7, False, ELEMENTS, spans.union(some)))
    in_it = {holding.member: holding for holding in holdings if holding.round == 7 and not holding.over}
    pairs = [(one, other) for one in names(count) for other in names(count) if one < other and draw.random() < 0.5]
    orders = {member: orders_for(member, holdings, pairs) for member in names(count)}
    first = min(holding.round + holding.over for holding in holdings)
    assert {its.round for its in orders.values()} == {first}
    assert len({its.reduces for member, its in orders.items() if member in in_it}) <= 1
    if first == 8:
        assert all(its.restart for its in orders.values())  # no member holds any of the next round
        return
    arrived = fetched_in_order(holdings, orders)
    for member, its in orders.items():
        if member not in in_it:
            assert not its.fetch and not its.left
            continue
        fetched: set[int] = set()
        for peer, start, stop in its.fetch:
            span = set(range(start, stop))
            assert not span & fetched and peer != member
            fetched |= span
        kept, left = elements(in_it[member].final), elements(its.left)
        assert arrived[member] == kept | fetched
        assert its.restart or (kept | fetched | left == set(range(ELEMENTS)))
        assert not kept & fetched and not (kept | fetched) & left


def fetched_in_order(holdings: list[Holding], orders: dict[str, RecoveryOrders]) -> dict[str, set[int]]:
    """Return each member's elements once no fetch is left that can go on: each peer is asked in the order of elements.

    A peer answers what it holds by then. It may have to fetch that itself.
    """
    whole = set(range(ELEMENTS))
    have = {its.member: whole if its.over or its.round > 7 else elements(its.final) for its in holdings}
    waiting = {
        (member, peer): [set(range(start, stop)) for other, start, stop in its.fetch if other == peer]
        for member, its in orders.items()
        for peer, _, _ in its.fetch
    }
    going = True
    while going:
        going = False
        for (member, peer), asked in waiting.items():
            while asked and asked[0] <= have[peer]:
                have[member] = have[member] | asked.pop(0)
                going = True
    return have


@pytest.mark.parametrize("said", [(0, ()), (ELEMENTS, ((0, ELEMENTS),))], ids=["nothing", "what it held of the last"])
def test_a_member_that_has_not_begun_the_round_begins_it_again_with_the_others(said: tuple[int, spans.Spans]) -> None:
    """A defect once took its elements of the previous round for this one's, so its own update became its mean."""
    holdings = [Holding("a", 4, 6, True, *said), Holding("b", 4, 7, False, ELEMENTS)]
    for member in "ab":
        its = orders_for(member, holdings)
        assert (its.round, its.restart, its.reduces) == (7, True, True)


def test_a_round_that_is_over_for_one_is_fetched_whole() -> None:
    holdings = [Holding("a", 4, 7, True), Holding("b", 4, 7, False, 10, ((2, 4),)), Holding("c", 4, 7, False, 10)]
    assert orders_for("a", holdings).fetch == ()
    assert orders_for("c", holdings).fetch == (("a", 0, 2), ("a", 2, 4), ("a", 4, 10))
    assert orders_for("b", holdings).fetch == (("a", 0, 2), ("a", 4, 10))
    assert not any(orders_for(member, holdings).reduces for member in "abc")


def test_means_spread_over_the_plan_s_edges_from_the_members_that_hold_them() -> None:
    holdings = [Holding("a", 4, 7, True), *(Holding(member, 4, 7, False, 10) for member in "bcd")]
    line, apart = {("d", "c"), ("c", "b"), ("b", "a")}, {("b", "a")}
    for pairs, sources in ((line, "abc"), (apart, "aaa"), ((), "aaa")):
        fetched = [orders_for(member, holdings, pairs).fetch for member in "bcd"]
        assert fetched == [((source, 0, 10),) for source in sources]


def test_means_spread_over_no_edge_that_a_plan_gives_little() -> None:
    plan = Plan(1, names(3), (replace(star(names(3), "m0"), share=0.9), replace(star(names(3), "m2"), share=0.1)))
    assert {frozenset(pair) for pair in spreading_pairs(plan)} == {frozenset(("m0", "m1")), frozenset(("m0", "m2"))}


def test_each_part_is_fetched_towards_the_nearest_member_that_holds_it() -> None:
    line = {("a", "b"), ("b", "c"), ("c", "d")}
    held = {"a": ((0, 4),), "b": (), "c": (), "d": ((2, 8),)}
    holdings = [Holding(member, 4, 7, False, 10, final) for member, final in held.items()]
    assert set(orders_for("b", holdings, line).fetch) == {("a", 0, 2), ("a", 2, 4), ("c", 4, 8)}
    assert set(orders_for("c", holdings, line).fetch) == {("b", 0, 2), ("d", 2, 4), ("d", 4, 8)}


def test_members_in_a_ring_do_not_wait_for_each_other_in_a_circle() -> None:
    """Where touching parts with different holders were one request, each member waited for the next one."""
    members, quarter = "abcd", ELEMENTS // 4
    holdings = [
        Holding(member, 4, 7, False, ELEMENTS, ((at * quarter, (at + 1) * quarter),))
        for at, member in enumerate(members)
    ]
    ring = {("a", "b"), ("b", "c"), ("c", "d"), ("d", "a")}
    orders = {member: orders_for(member, holdings, ring) for member in members}
    assert fetched_in_order(holdings, orders) == {member: set(range(ELEMENTS)) for member in members}


def test_a_fetch_that_breaks_off_in_any_way_ends_the_recovery(monkeypatch: pytest.MonkeyPatch) -> None:
    def fetch(*_: object) -> FetchAnswer:
        raise MemoryError

    with pytest.raises(MemoryError):
        recover_with(monkeypatch, Aborted(), fetch)


def slices(*parts: tuple[int, int, str]) -> list[MeanSlice]:
    return [MeanSlice(start, stop, tuple(members), float(len(members))) for start, stop, members in parts]


def test_pieces_that_come_one_by_one_are_kept_as_one_slice() -> None:
    """Each look at what is final would else take longer than the one before."""
    attempt = Attempt(1, torch.zeros(ELEMENTS), 1.0, None)
    for start in range(0, ELEMENTS, 2):
        attempt.put(start, torch.ones(2), slices((0, ELEMENTS, "ab")))
    assert attempt.slices == tuple(slices((0, ELEMENTS, "ab")))
    assert attempt.whole


def test_a_round_that_is_mended_twice_keeps_what_was_final() -> None:
    values = torch.arange(10.0)
    attempt = Attempt(3, values, 1.0, None)
    values[0:2] = -1  # as the group's round does
    attempt.absorb(slices((0, 2, "abc")))
    attempt.put(8, torch.full((2,), -2.0), slices((5, 20, "abc")))
    packed, _ = attempt.pack(((2, 8),))
    assert packed.tolist() == [2, 3, 4, 5, 6, 7]
    packed[1:3] = -3
    attempt.absorb(slices((1, 3, "ab")))
    assert not attempt.whole and attempt.means(0, 3) is None
    attempt.again()
    packed, _ = attempt.pack(((2, 3), (5, 8)))
    packed[:] = -4
    attempt.absorb(slices((0, 4, "a")))
    assert attempt.whole and values.tolist() == [-1, -1, -4, -3, -3, -4, -4, -4, -2, -2]
    assert joined(attempt.slices) == tuple(
        slices((0, 2, "abc"), (2, 3, "a"), (3, 5, "ab"), (5, 8, "a"), (8, 10, "abc"))
    )
    assert attempt.finished_round(attempt.slices).means[1:4].tolist() == [-1, -4, -3]


def test_what_is_owed_is_paid_once_when_a_round_is_mended() -> None:
    residual = Residual()
    residual.values = torch.arange(6.0)
    attempt = Attempt(3, torch.zeros(6), 1.0, residual)
    owed = attempt.begin()
    assert owed is not None and owed.values is not None and owed.values.tolist() == [0, 1, 2, 3, 4, 5]
    owed.values[:] = torch.tensor([9.0, 9, 0, 0, 0, 0])  # sent, and new errors where chunks were encoded
    attempt.absorb(slices((0, 2, "abc")))
    attempt.again()
    assert residual.values.tolist() == [9, 9, 2, 3, 4, 5]
    _, owed = attempt.pack(((2, 6),))
    assert owed is not None and owed.values is not None and owed.values.tolist() == [2, 3, 4, 5]
    owed.values[:] = 7
    attempt.absorb(slices((0, 2, "ab")))
    attempt.again()
    assert residual.values.tolist() == [9, 9, 7, 7, 4, 5]
    _, owed = attempt.pack(((4, 6),))
    assert owed is not None and owed.values is not None
    owed.values[:] = 8
    attempt.absorb(slices((0, 2, "a")))
    attempt.again()
    assert residual.values.tolist() == [9, 9, 7, 7, 8, 8]


def test_what_is_owed_of_means_that_another_member_holds_is_that_of_their_try() -> None:
    """c dies as means are broadcast: b holds those of two elements, in which this member's debt is paid."""
    residual = Residual()
    residual.values = torch.arange(6.0)
    attempt = Attempt(3, torch.zeros(6), 1.0, residual)
    owed = attempt.begin()
    assert owed is not None and owed.values is not None
    owed.values[:] = 9
    attempt.absorb(slices((0, 1, "abc")))
    attempt.again()
    attempt.put(1, torch.ones(2), slices((1, 3, "abc")))
    assert residual.values.tolist() == [9, 9, 9, 3, 4, 5]
    _, owed = attempt.pack(((3, 6),))
    assert owed is not None and owed.values is not None and owed.values.tolist() == [3, 4, 5]
    owed.values[:] = 7
    attempt.again()
    attempt.put(4, torch.ones(2), slices((4, 6, "ab")))
    assert residual.values.tolist() == [9, 9, 9, 3, 7, 7]


def test_a_round_that_goes_through_leaves_owed_what_it_left_out() -> None:
    residual = Residual()
    attempt = Attempt(3, torch.zeros(6), 1.0, residual)
    owed = attempt.begin()
    assert owed is not None
    owed.values = torch.ones(6)
    assert residual.values is None
    attempt.done()
    assert residual.values is not None and residual.values.tolist() == [1] * 6


class LateCodec(Half):
    """Calls a function while a thread encodes."""

    def __init__(self, meanwhile: Callable[[], None]) -> None:
        super().__init__("fp16", 3, torch.float16)
        self._meanwhile = meanwhile

    def encode(self, values: torch.Tensor) -> torch.Tensor:
        self._meanwhile()
        return super().encode(values)


def test_what_a_thread_encodes_for_a_try_that_was_aborted_is_owed_in_no_other() -> None:
    residual = Residual()
    residual.values = torch.arange(6.0)
    attempt = Attempt(3, torch.zeros(6), 1.0, residual)
    sums = Sums(6, torch.float32, Scratch())
    sums.view(0, 6).fill_(1 / 3)
    encoder = Encoder(sums, attempt.begin())
    encoder.encode(Chunk(0, 0.0, 0, 6), Kind.MEAN, Part(1, 1.0, 0), LateCodec(attempt.again), None)
    assert residual.values.tolist() == [0, 1, 2, 3, 4, 5]
    following = attempt.begin()
    assert following is not None and following.values is not None
    assert following.values.tolist() == [0, 1, 2, 3, 4, 5]


def interrupted(seed: int) -> tuple[Wire, dict[str, Attempt], str]:
    """Run a round in which a member dies after some steps, and the others abort it in turn."""
    draw = random.Random(seed)
    wire = Wire(random_plan(draw, names(draw.randint(3, 6)), epoch=3, chunk_bytes=1024), DEATH_ELEMENTS, draw)
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
        attempts[member].absorb(wire.members[member].final_slices())
    return wire, {member: attempts[member] for member in sorted(survivors)}, dead


def holding_of(member: str, attempt: Attempt) -> Holding:
    if attempt.whole:
        return Holding(member, 4, 1, over=True)
    return Holding(member, 4, 1, over=False, elements=DEATH_ELEMENTS, final=attempt.final)


def fetch_all(attempts: dict[str, Attempt], orders: dict[str, RecoveryOrders]) -> None:
    """Let each survivor fetch the means of its orders, as the other survivors held them before."""
    held = {member: (attempt.values.clone(), attempt.slices) for member, attempt in attempts.items()}
    for member, attempt in attempts.items():
        for peer, start, stop in orders[member].fetch if not attempt.whole else ():
            values, slices = held[peer]
            assert not spans.minus([(start, stop)], spans.union((its.start, its.stop) for its in slices))
            attempt.put(start, values[start:stop], slices)


def reduce_rest(wire: Wire, attempts: dict[str, Attempt], orders: dict[str, RecoveryOrders], seed: int) -> None:
    """Reduce the elements that no survivor holds among the survivors."""
    whole: spans.Spans = ((0, DEATH_ELEMENTS),)
    lefts = {whole if its.restart else its.left for its in orders.values() if its.restart or its.left}
    if not lefts:
        return
    [left] = lefts
    draw = random.Random(seed)
    again = Wire(random_plan(draw, tuple(attempts), epoch=4, chunk_bytes=1024), spans.count(left), draw)
    for member, attempt in attempts.items():
        packed, _ = attempt.pack(left)
        again.values[member] = packed
        again.members[member].start(Contribution(packed, wire.weights[member], lambda: 4, lambda: 4))
    again.run()
    for member, attempt in attempts.items():
        attempt.absorb(again.members[member].final_slices())
        attempt.again()


def mean_of(wire: Wire, part: MeanSlice) -> torch.Tensor:
    total = sum(
        wire.contributed[member][part.start : part.stop].double() * wire.weights[member] for member in part.members
    )
    return total / sum(wire.weights[member] for member in part.members)


def test_wherever_in_a_round_a_member_dies_the_others_end_with_the_same_right_bits() -> None:
    """Each element's mean is of all members, or of all but the dead one; the slices tell which."""
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
    assert min(kept, left, mixed, whole) >= 5, "the seeds reach all kinds of moments of death"


class Aborted:
    """A group of survivors that is aborted once `failure` is set."""

    settings = TransportSettings("a", {}, 1.0, generation=5)
    suspect_s = inf
    failure: SyncError | None = None

    def check(self) -> None:
        if self.failure is not None:
            raise self.failure

    def on_failure(self, call: Callable[[SyncError], None]) -> None:
        self.call = call

    def fail(self, error: SyncError) -> None:
        self.failure = error
        self.call(error)


def recover_with(monkeypatch: pytest.MonkeyPatch, group: Any, fetch: Callable[..., FetchAnswer]) -> Attempt:
    """Recover a round of four elements, all of which b holds. Returns the attempt after the group was aborted."""
    monkeypatch.setattr(recovery, "fetch_all", lambda *given: (fetch(*given) for _ in given[3]))
    attempt, orders = Attempt(3, torch.zeros(4), 1.0, None), RecoveryOrders(3, False, (), (("b", 0, 4),))
    with pytest.raises(Halted):
        recovery.recover(group, {"b": ("10.0.0.1", 1)}, orders, attempt, threading.Condition())
    return attempt


def test_means_that_come_after_an_abort_are_not_final(monkeypatch: pytest.MonkeyPatch) -> None:
    """The others reduce these elements again if b is lost, and this member has to contribute its own values."""
    group = Aborted()

    def fetch(*_: object) -> FetchAnswer:
        group.fail(Halted("b is gone, too"))
        return FetchAnswer(MeansNote(tuple(slices((0, 4, "abc")))), bytes_of(torch.ones(4)))

    attempt = recover_with(monkeypatch, group, fetch)
    assert attempt.final == () and attempt.values.tolist() == [0.0] * 4


def test_an_abort_gives_a_fetch_up_and_blames_no_peer(monkeypatch: pytest.MonkeyPatch) -> None:
    group = Aborted()

    def fetch(*given: Any) -> FetchAnswer:
        group.fail(Halted("c is gone, too"))
        assert given[-1].is_set()
        raise SyncError("given up")

    recover_with(monkeypatch, group, fetch)
