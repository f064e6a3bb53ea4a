"""Rounds through codecs: members stay bit-identical, and no value is lost, under any plan and during swaps."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from testbed import sync
from testbed.plan import Plan, PlanError
from testbed.protocol import Held
from testbed.sync.allreduce.role import role_in
from testbed.sync.codecs import Residual, by_name
from tests.sync.controller import Controller, job
from tests.sync.plans import chain, names, random_plan, star
from tests.sync.sessions import run, run_with

pytestmark = pytest.mark.local

ROUNDS = 6


def values(member: str, round_number: int, elements: int) -> torch.Tensor:
    seed = int(member[1:]) * 1000 + round_number
    return torch.randn(elements, generator=torch.Generator().manual_seed(seed))


Outcome = tuple[list[torch.Tensor], torch.Tensor]


def reduce(session: sync.Session, elements: int, weight: float) -> Outcome:
    """Run some rounds. Returns their means, and this member's residual after them."""
    residual, means = Residual(), []
    for k in range(ROUNDS):
        means.append(session.allreduce(values(session.name, k, elements), weight, residual).tensor)
    left = residual.values
    return means, torch.zeros(elements) if left is None else left


def check(results: dict[str, Outcome], weights: dict[str, float], elements: int, rounds: int = ROUNDS) -> None:
    first = next(iter(results.values()))[0]
    for means, _ in results.values():
        assert all(torch.equal(a, b) for a, b in zip(first, means, strict=True)), "members differ"
    put_in = sum(values(m, k, elements).double() * weights[m] for m in results for k in range(rounds))
    came_out = sum(mean.double() for mean in first) * sum(weights.values())
    left = sum(residual.double() for _, residual in results.values())
    assert (put_in - came_out - left).abs().max() <= 1e-4 * put_in.abs().max()


@pytest.mark.parametrize("codec", ["fp16", "bf16", "int8", "topk:0.1", "bins2", "bins4", "sparse"])
@pytest.mark.parametrize("seed", range(3))
def test_what_was_put_in_came_out_or_is_owed(tmp_path: Path, codec: str, seed: int) -> None:
    draw = random.Random(seed)
    plan = replace(random_plan(draw, names(draw.randint(2, 6)), 0, chunk_bytes=2048), codec=codec)
    weights = {m: draw.uniform(0.1, 8) for m in plan.members}
    elements = draw.randint(1, 6000)
    results = run(tmp_path, plan, lambda session: reduce(session, elements, weights[session.name]))
    check(results, weights, elements)


def test_what_decays_is_paid_by_as_much_less(tmp_path: Path) -> None:
    """One link with a codec for partial sums alone: e ← βe + Δ − q at the member that encodes."""
    members, decay, elements = names(2), 0.5, 3000
    plan = Plan(0, members, (chain(members),), 4 * 4096, link_codecs={"m1->m0": "bins2"})

    def work(session: sync.Session) -> Outcome:
        residual, means = Residual(decay), []
        for k in range(ROUNDS):
            means.append(session.allreduce(values(session.name, k, elements), 1.0, residual).tensor)
        return means, torch.zeros(elements) if residual.values is None else residual.values

    results = run(tmp_path, plan, work)
    codec, owed = by_name("bins2"), torch.zeros(elements)
    for k in range(ROUNDS):
        due = values("m1", k, elements) + decay * owed
        sent = codec.decode(codec.encode(due), elements)
        owed = due - sent
        torch.testing.assert_close(results["m0"][0][k], (values("m0", k, elements) + sent) / 2)
    torch.testing.assert_close(results["m1"][1], owed)


@pytest.mark.parametrize("seed", range(3))
def test_sparse_sums_are_those_of_fp32_to_the_bit(tmp_path: Path, seed: int) -> None:
    """The sums are the same in any tree, and no residual is left."""
    draw = random.Random(seed)
    plan = random_plan(draw, names(draw.randint(2, 6)), 0, chunk_bytes=4096)
    elements = draw.randint(1000, 9000)

    def work(session: sync.Session) -> Outcome:
        residual, means = Residual(), []
        for k in range(ROUNDS):
            tensor = values(session.name, k, elements)
            tensor[tensor.abs() < 2.5] = 0
            means.append(session.allreduce(tensor, 1.0, residual).tensor)
        return means, torch.zeros(elements) if residual.values is None else residual.values

    settings = job(reproducible=True)
    (tmp_path / "sparse").mkdir()
    (tmp_path / "fp32").mkdir()
    coded = run(tmp_path / "sparse", replace(plan, codec="sparse"), work, settings)
    plain = run(tmp_path / "fp32", plan, work, settings)
    for member, (means, owed) in coded.items():
        assert not owed.any()
        assert all(torch.equal(a, b) for a, b in zip(means, plain[member][0], strict=True))


def test_weights_of_many_samples_do_not_saturate_fp16(tmp_path: Path) -> None:
    """Partial sums are weighted: 50,000 samples times values of 2 are beyond fp16's largest number."""
    members = names(3)
    plan = Plan(0, members, (chain(members),), codec="fp16")
    results = run(tmp_path, plan, lambda session: session.allreduce(2 + values(session.name, 0, 900), 5e4, Residual()))
    mean = sum(2 + values(m, 0, 900).double() for m in members) / 3
    assert all((result.tensor - mean).abs().max() <= 0.01 for result in results.values())


def test_links_may_have_codecs_of_their_own(tmp_path: Path) -> None:
    members = names(4)
    plan = Plan(0, members, (chain(members),), 2048, link_codecs={"m2->m1": "int8", "m0->m1": "fp16"})
    weights = dict.fromkeys(members, 1.0)
    results = run(tmp_path, plan, lambda session: reduce(session, 3000, 1.0))
    check(results, weights, 3000)
    owing = {member for member, (_, owed) in results.items() if owed.any()}
    assert owing == {"m0", "m2"}  # the member that encodes the mean, and the one whose partial sum is encoded


def test_without_a_residual_a_plan_with_codecs_is_exact(tmp_path: Path) -> None:
    members = names(3)
    plan = Plan(0, members, (star(members, "m1"),), codec="int8")
    results = run(tmp_path, plan, lambda session: session.allreduce(values(session.name, 0, 900)).tensor)
    mean = sum(values(m, 0, 900).double() for m in members) / 3
    assert all((result - mean).abs().max() <= 1e-6 for result in results.values())


def test_int8_takes_a_quarter_of_the_bytes(tmp_path: Path) -> None:
    members, elements = names(2), 300_000

    def sent(folder: str, codec: str) -> int:
        (tmp_path / folder).mkdir()
        plan = Plan(0, members, (chain(members),), codec=codec)
        with Controller(tmp_path / folder, plan, job()) as controller:
            run_with(controller, lambda session: reduce(session, elements, 1.0))
            return sum(report.sent_bytes for report in controller.reports())

    assert sent("int8", "int8") <= 0.26 * sent("fp32", "fp32")


def test_debts_survive_swaps_of_plan_and_codec(tmp_path: Path) -> None:
    members, elements, draw = names(4), 2500, random.Random(5)
    codecs = ["int8", "fp32", "bf16", "topk:0.2", "fp16", "fp32"]
    plans = [replace(random_plan(draw, members, epoch, 1024), codec=codecs[epoch]) for epoch in range(ROUNDS)]
    weights = dict.fromkeys(members, 1.0)
    with Controller(tmp_path, plans[0], job()) as controller:

        def work(session: sync.Session) -> Outcome:
            residual, means = Residual(), []
            for k in range(3 * ROUNDS):
                if session.name == "m0" and k and k % 3 == 0:
                    controller.prepare(plans[k // 3])
                    controller.await_messages(Held, 4 * (k // 3))
                means.append(session.allreduce(values(session.name, k, elements), 1.0, residual).tensor)
            assert residual.values is not None
            return means, residual.values

        results = run_with(controller, work)
    assert {report.epoch for report in controller.reports()} == set(range(ROUNDS))
    check(results, weights, elements, 3 * ROUNDS)


def test_a_value_that_is_not_finite_spoils_one_round_only(tmp_path: Path) -> None:
    members = names(3)

    def work(session: sync.Session) -> list[bool]:
        residual, spoilt = Residual(), []
        for k in range(3):
            tensor = values(session.name, k, 700)
            if k == 0 and session.name == "m2":
                tensor[10] = float("inf")
            spoilt.append(not session.allreduce(tensor, 1.0, residual).tensor.isfinite().all())
        return spoilt

    results = run(tmp_path, Plan(0, members, (chain(members),), codec="int8"), work)
    assert set(map(tuple, results.values())) == {(True, False, False)}


def test_a_plan_with_a_codec_that_does_not_exist_is_refused() -> None:
    members = names(2)
    with pytest.raises(PlanError) as caught:
        role_in(plan := Plan(0, members, (chain(members),), codec="int3"), plan.whole, "m1")
    assert (caught.value.field, caught.value.link) == ("codec", "m1->m0")
    with pytest.raises(PlanError) as caught:
        Plan(0, members, (chain(members),), link_codecs={"m0->m7": "int8"})
    assert (caught.value.field, caught.value.link) == ("link_codecs", "m0->m7")
