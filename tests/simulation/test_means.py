"""Means in one process are the means of members over sockets."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from testbed import sync
from testbed.plan import Plan, Tree
from testbed.simulation.means import RoundInput, reduce
from testbed.simulation.round_model import coded_payload
from testbed.sync.codecs import Residual
from testbed.sync.codecs.sparse import HEAD
from tests.sync.controller import job
from tests.sync.plans import names, random_groups, random_plan
from tests.sync.sessions import run

pytestmark = pytest.mark.local

ELEMENTS, ROUNDS = 5_000, 4
CODECS = ("fp16", "int8", "topk:0.05", "bins2", "sparse")


def values(member: str, number: int) -> torch.Tensor:
    return torch.randn(ELEMENTS, generator=torch.Generator().manual_seed(100 * int(member[1:]) + number))


def weight(member: str) -> float:
    return 1.0 + int(member[1:]) % 3


def in_one_process(plan: Plan) -> list[Mapping[str, RoundInput]]:
    """Return what members hold after each round."""
    residuals = {name: Residual(0.9) for name in plan.members}
    rounds = []
    for number in range(1, ROUNDS + 1):
        held = {name: RoundInput(values(name, number), weight(name), residuals[name]) for name in plan.members}
        reduce(plan, number, held)
        rounds.append(held)
    return rounds


@pytest.mark.parametrize("codec", ["int8", "topk:0.05"])
def test_codecs_leave_of_a_mean_what_they_leave_over_sockets(codec: str, tmp_path: Path) -> None:
    """Means are equal bit by bit, in rounds among all and in groups, with the residuals between rounds."""
    draw = random.Random(3)
    plan = replace(random_groups(draw, random_plan(draw, names(5), epoch=0)), codec=codec)

    def work(session: sync.Session) -> list[torch.Tensor]:
        residual = Residual(0.9)
        means = [values(session.name, number) for number in range(1, ROUNDS + 1)]
        for mean in means:
            session.allreduce(mean, weight(session.name), residual)
        return means

    over_sockets = run(tmp_path, plan, work, job(reproducible=True))
    for number, held in enumerate(in_one_process(plan)):
        for name, its in held.items():
            assert torch.equal(its.values, over_sockets[name][number])


@settings(max_examples=6, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from(CODECS))
@example(71, "sparse")  # a part of 83 values
def test_nothing_is_lost_only_late(seed: int, codec: str) -> None:
    draw = random.Random(seed)
    plan = replace(random_plan(draw, names(draw.randint(2, 6)), epoch=0), codec=codec)
    residuals = {name: Residual() for name in plan.members}
    contributed, received = torch.zeros(ELEMENTS), torch.zeros(ELEMENTS)
    total = sum(weight(name) for name in plan.members)
    least = ELEMENTS * min(tree.share * key for tree in plan.trees for key in tree.keys or (1.0,))
    most = 1 + HEAD / plan.chunk_bytes + HEAD / (4 * max(least - 1, 1))  # a head for each chunk, the last one's too
    for number in range(1, ROUNDS + 1):
        held = {name: RoundInput(values(name, number), weight(name), residuals[name]) for name in plan.members}
        for its in held.values():
            contributed += its.values * its.weight
        payload = reduce(plan, number, held)
        means = [its.values for its in held.values()]
        assert all(torch.equal(means[0], mean) for mean in means)
        assert all(0 < part <= most for part in payload.coded.values())
        received += means[0] * total
    owed = torch.zeros(ELEMENTS)
    for debt in residuals.values():
        if debt.values is not None:
            owed += debt.values
    assert torch.allclose(contributed, received + owed, atol=2e-4 * ROUNDS * total)


def test_what_codecs_say_of_themselves_is_what_they_take() -> None:
    draw = random.Random(5)
    plan = replace(random_plan(draw, names(4), epoch=0, chunk_bytes=4096), codec="int8")
    held = {name: RoundInput(values(name, 1), 1.0, Residual()) for name in plan.members}
    taken, said = reduce(plan, 1, held), coded_payload(plan, 1, ELEMENTS)
    assert taken.bytes == said.bytes and taken.coded.keys() == said.coded.keys()
    for way, part in said.coded.items():
        assert taken.coded[way] == pytest.approx(part, rel=0.05)


def test_an_edge_of_several_trees_takes_each_one_s_codec() -> None:
    """Means keep one codec down a whole tree: the strongest of its edges."""
    down, across = {"b": "a", "c": "b"}, {"b": "a", "c": "a"}
    trees = (Tree("a", down, down, 0.5), Tree("a", across, across, 0.5))
    plan = Plan(0, ("a", "b", "c"), trees, 4096, link_codecs={"b->c": "int8"})
    held = {name: RoundInput(torch.ones(ELEMENTS), 1.0, Residual()) for name in plan.members}
    for order in (plan, replace(plan, trees=trees[::-1])):
        taken, said = reduce(order, 1, held), coded_payload(order, 1, ELEMENTS)
        assert said.coded["a", "b", True] == pytest.approx(taken.coded["a", "b", True], rel=0.02)
        assert said.coded["a", "b", True] == pytest.approx(0.63, abs=0.02)


def test_values_without_weight_do_not_count_and_without_any_weight_there_is_no_mean() -> None:
    plan = random_plan(random.Random(5), names(3), epoch=0)
    first, *others = plan.members
    held = {name: RoundInput(values(name, 1), 1.0, None) for name in others}
    mean = sum((its.values for its in held.values()), torch.zeros(ELEMENTS)) / len(others)
    held[first] = RoundInput(torch.full((ELEMENTS,), torch.nan), 0.0, None)
    reduce(plan, 1, held)
    assert all(torch.allclose(its.values, mean) for its in held.values())
    with pytest.raises(sync.SyncError) as caught:
        reduce(plan, 1, {name: RoundInput(values(name, 1), 0.0, None) for name in plan.members})
    assert caught.value.rule == "no-weight"
