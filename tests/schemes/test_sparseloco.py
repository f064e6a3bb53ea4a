"""SparseLoCo against its formula, and in cases with a known result."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from testbed import sync
from testbed.plan import Group, Plan
from testbed.schemes.sparseloco import SparseLoCo, SparseLoCoOptions, compressed
from testbed.schemes.training import RoundTraining
from testbed.sync.strategies.strategy import Reducer
from tests.sync.controller import job
from tests.sync.plans import chain, names, star
from tests.sync.sessions import run
from tests.sync.strategies.training import around, by_mean_gradient, flat, model, step, trained

MEMBERS = names(3)
PLAN = Plan(0, MEMBERS, (star(MEMBERS, "m1"),), codec="sparse")
STEPS = 6
#: No chunk of the small model has as many elements.
ALL = {"top_k": 4096, "bits": None}
#: CCLoco's mean and norms.
OLDER = {"mean": "all", "clip": False}

shapes = st.one_of(st.tuples(st.integers(1, 300)), st.tuples(st.integers(1, 20), st.integers(1, 30)))


def normal(shape: tuple[int, ...], seed: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def train(directory: Path, plan: Plan = PLAN, steps: int = STEPS, **options: Any) -> dict[str, torch.Tensor]:
    """Return each member's parameters at the end, which are all the same bits."""
    own = SparseLoCoOptions(**options)
    results = trained(directory, plan, lambda its: SparseLoCo(its, own), steps, job(reproducible=True))
    ends = {member: end for member, (_, end, _) in results.items()}
    first = next(iter(ends.values()))
    assert all(torch.equal(first, other) for other in ends.values())
    return ends


def by_hand(every: int, options: SparseLoCoOptions) -> torch.Tensor:
    """Compute e ← βe + Δ, q = Q(e), e ← e − q, θ ← θ − α·mean(q), one member after the other.

    The mean of each element is over the members that sent it, of tensors that are not larger than the median's.
    """
    anchor = flat(model())
    nets = {member: model() for member in MEMBERS}
    errors = {member: torch.zeros_like(anchor) for member in MEMBERS}
    for first in range(0, STEPS, every):
        sent = []
        for member, net in nets.items():
            optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
            for number in range(first, first + every):
                step(net, optimizer, member, number)
            errors[member] = options.decay * errors[member] + anchor - flat(net)
            parts = errors[member].split([p.numel() for p in net.parameters()])
            thinned = [
                compressed(part.view(p.shape), options.top_k, options.chunk, options.bits).flatten()
                for part, p in zip(parts, net.parameters(), strict=True)
            ]
            sent.append(torch.cat(thinned))
            errors[member] = errors[member] - sent[-1]
        anchor = anchor - options.learning_rate * mean_of(torch.stack(sent), options)
        for net in nets.values():
            nn.utils.vector_to_parameters(anchor.clone(), net.parameters())
    return anchor


def mean_of(sent: torch.Tensor, options: SparseLoCoOptions) -> torch.Tensor:
    """Return the mean of what members sent, a row for each."""
    count = (sent != 0).sum(0).clamp_min(1) if options.mean == "senders" else len(sent)
    if options.clip:
        parts = sent.split([p.numel() for p in model().parameters()], dim=1)
        norms = [part.norm(dim=1, keepdim=True) for part in parts]
        sent = torch.cat(
            [p * torch.minimum(n.sort(0).values[1], n) / n for p, n in zip(parts, norms, strict=True)], dim=1
        )
    return sent.sum(0) / count


@pytest.mark.local
@pytest.mark.parametrize(
    "form", [{}, {"bits": None}, {"mean": "all"}, {"clip": False}, OLDER, {**OLDER, "bits": None}], ids=str
)
def test_it_is_its_formula(tmp_path: Path, form: dict[str, Any]) -> None:
    options = {"every": 2, "top_k": 3, "chunk": 4, "decay": 0.9, "learning_rate": 0.8, **form}
    results = train(tmp_path, **options)
    torch.testing.assert_close(results["m0"], by_hand(2, SparseLoCoOptions(**options)), atol=1e-6, rtol=1e-5)


@pytest.mark.local
def test_uncompressed_with_one_step_of_sgd_it_is_the_mean_gradient(tmp_path: Path) -> None:
    results = train(tmp_path, every=1, **ALL, clip=False)
    expected = by_mean_gradient(STEPS, dict.fromkeys(MEMBERS, 1.0))
    torch.testing.assert_close(results["m0"], expected, atol=1e-6, rtol=1e-5)


@pytest.mark.local
def test_one_member_uncompressed_is_its_optimizer(tmp_path: Path) -> None:
    alone = Plan(0, ("m0",), (star(("m0",), "m0"),), codec="sparse")
    expected = by_mean_gradient(STEPS, {"m0": 1.0})
    torch.testing.assert_close(train(tmp_path, alone, every=4, **ALL)["m0"], expected, atol=1e-6, rtol=1e-5)


@pytest.mark.local
def test_through_the_codec_and_without_it_is_the_same_to_the_bit(tmp_path: Path) -> None:
    options: dict[str, Any] = {"every": 2, "top_k": 3, "chunk": 4}
    through = train(tmp_path / "sparse", **options)
    without = train(tmp_path / "fp32", Plan(0, MEMBERS, PLAN.trees), **options)
    assert torch.equal(through["m0"], without["m0"])


@pytest.mark.pure
@given(shapes, st.integers(0, 2**32), st.integers(1, 20), st.integers(1, 9))
def test_each_chunk_sends_its_largest_and_keeps_the_rest_to_the_bit(
    shape: tuple[int, ...], seed: int, top_k: int, side: int
) -> None:
    values = normal(shape, seed)
    sent = compressed(values, top_k, side, None)
    left = values - sent
    assert torch.equal(left + sent, values) and not (left * sent).any()
    rows = values.view(len(values) if len(shape) > 1 else 1, -1)
    height, width = (side, side) if len(shape) > 1 else (1, side * side)
    for top in range(0, rows.shape[0], height):
        for start in range(0, rows.shape[1], width):
            part = (slice(top, top + height), slice(start, start + width))
            gone, kept = sent.view(rows.shape)[part], left.view(rows.shape)[part]
            assert (gone != 0).sum() == min(top_k, gone.numel())
            assert not kept.any() or kept.abs().max() <= gone[gone != 0].abs().min()


@pytest.mark.pure
@given(shapes, st.integers(0, 2**32), st.integers(1, 4))
def test_with_bits_it_sends_as_many_levels_and_their_sum(shape: tuple[int, ...], seed: int, bits: int) -> None:
    values = normal(shape, seed)
    exact, sent = (compressed(values, 5, 4, its) for its in (None, bits))
    levels = sent[sent != 0].unique()
    assert len(levels) <= 2**bits
    assert torch.equal(exact != 0, sent != 0)
    torch.testing.assert_close(sent.sum(), exact.sum(), atol=1e-4, rtol=1e-5)  # a bin is its mean
    assert (sent * exact >= 0).all()


@pytest.mark.pure
def test_nothing_changed_is_nothing_sent() -> None:
    assert not compressed(torch.zeros(70, 70), 32, 64, 2).any()


@pytest.mark.pure
@pytest.mark.parametrize("shape", [(20, 30), (600,), (0,), (0, 30)])
def test_a_chunk_far_larger_than_a_tensor_is_the_whole_tensor(shape: tuple[int, ...]) -> None:
    """Filled up with zeros, the chunk would take 4 TB."""
    values = normal(shape, 1)
    assert torch.equal(compressed(values, 5, 10**6, 2), compressed(values, 5, 30, 2))


@pytest.mark.pure
@pytest.mark.parametrize(("clip", "rounds", "periods"), [(True, 6, 3), (True, 7, 4), (False, 7, 7)])
def test_as_many_periods_as_make_enough_rounds(clip: bool, rounds: int, periods: int) -> None:
    nobody = cast(Reducer, None)  # no round begins
    strategy = SparseLoCo(RoundTraining(nobody, [torch.zeros(3)], 1.0), SparseLoCoOptions(clip=clip))
    for done in (periods - 1, periods):
        strategy.load_state_dict({**strategy.state_dict(), "rounds": done})
        assert strategy.over(rounds, 0) == (done == periods)


class Quadratic(nn.Module):
    """½·|x − c|², where each member has its own c."""

    def __init__(self, dimensions: int) -> None:
        super().__init__()
        self.place = nn.Parameter(torch.zeros(dimensions))


@pytest.mark.long
@pytest.mark.local
def test_it_comes_to_the_optimum_though_each_round_sends_a_tenth(tmp_path: Path) -> None:
    """Curvatures are equal, so the members' mean is unbiased.

    Without the residual, training stops far off, where no member's largest values coincide. The residuals keep it
    moving around the optimum, less with smaller steps.
    """
    dimensions = 100
    centres = {member: normal((dimensions,), number) for number, member in enumerate(MEMBERS)}
    optimum = torch.stack(list(centres.values())).mean(0)

    def work(decay: float) -> dict[str, float]:
        def member(session: sync.Session) -> float:
            net = Quadratic(dimensions)
            optimizer = torch.optim.SGD(net.parameters(), lr=0.02)
            training = RoundTraining(session, [net.place], 1.0)
            options = SparseLoCoOptions(4, top_k=10, chunk=10, decay=decay, learning_rate=0.7, mean="all", clip=False)
            with around(SparseLoCo(training, options), optimizer):
                for _ in range(4 * 250):
                    optimizer.zero_grad()
                    (0.5 * (net.place - centres[session.name]).square().sum()).backward()
                    optimizer.step()
            return (net.place.detach() - optimum).norm().item()

        folder = tmp_path / str(decay)
        folder.mkdir()
        return run(folder, PLAN, member)

    start = optimum.norm().item()
    off = {decay: max(work(decay).values()) / start for decay in (1.0, 0.0)}
    assert off[1.0] < 0.15 and off[0.0] > 0.3


@pytest.mark.local
@pytest.mark.parametrize(("form", "fewer"), [({}, 80), ({"top_k": 32, **OLDER}, 200)], ids=["", "older"])
def test_a_member_sends_few_bytes(tmp_path: Path, form: dict[str, Any], fewer: int) -> None:
    """The rounds' own counters show 64 of 4,096 values, each of about 18 bits, where fp32 has 32 for each of 4,096.

    The older form has 32 values of about 11 bits. Each chunk of 64 KiB adds a header and two tables; without headers
    the fraction is 1/107.
    """
    side, members = 512, names(2)
    plan = Plan(0, members, (chain(members),), codec="sparse")

    def work(session: sync.Session) -> int:
        weight = nn.Parameter(torch.zeros(side, side))
        training = RoundTraining(session, [weight], 1.0)
        strategy = SparseLoCo(training, SparseLoCoOptions(every=1, **form))
        with torch.no_grad():
            weight.sub_(normal((side, side), int(session.name[1:])))
        sent: list[int] = []
        reduce = session.allreduce

        def counted(*its: Any) -> sync.RoundResult:
            result = reduce(*its)
            sent.append(result.tally.sent_bytes)
            return result

        session.allreduce = counted  # type: ignore[method-assign]
        strategy.after_step()
        return sum(sent)

    leaf = run(tmp_path, plan, work)["m1"]
    assert leaf < 4 * side * side / fewer


@pytest.mark.local
def test_one_member_cannot_move_the_model_far(tmp_path: Path) -> None:
    """m2's change is 1,000 times as large as the others'. Clipped, it counts as one of the others'."""

    def work(clip: bool) -> dict[str, float]:
        def member(session: sync.Session) -> float:
            weight = nn.Parameter(torch.zeros(8))
            options = SparseLoCoOptions(every=1, chunk=1, bits=None, clip=clip)
            strategy = SparseLoCo(RoundTraining(session, [weight], 1.0), options)
            with torch.no_grad():
                weight.add_(1000.0 if session.name == "m2" else 1.0)
            strategy.after_step()
            return weight.detach().norm().item() / 8**0.5

        folder = tmp_path / str(clip)
        folder.mkdir()
        return run(folder, PLAN, member)

    assert max(work(True).values()) == pytest.approx(1)
    assert min(work(False).values()) == pytest.approx(334)


@pytest.mark.local
def test_a_plan_with_groups_is_refused(tmp_path: Path) -> None:
    members = names(2)
    groups = tuple(Group((member,), (chain((member,)),)) for member in members)
    plan = Plan(0, members, (chain(members),), groups=groups, period=2)
    with pytest.raises(sync.SyncError) as caught:
        train(tmp_path, plan, every=1)
    assert caught.value.rule == "groups"


class Halved:
    """A reducer among four, of which one was lost: the values are of all four, and the counts of the three left."""

    whole, name, members = True, "m0", ("m0", "m1", "m2")
    slices = (None, None)

    def allreduce(self, tensor: torch.Tensor, weight: float = 1.0, residual: object = None) -> Halved:
        half = len(tensor) // 2
        tensor[:half] *= 2 / 4  # two of four sent each value
        tensor[half:] *= 1 / 3  # one of them was lost
        return self


@pytest.mark.pure
def test_where_a_member_is_lost_in_a_round_values_count_over_their_own_members() -> None:
    """Else the mean of a value would be divided by the count of other members, here by a third for two of four."""
    place = nn.Parameter(torch.ones(4))
    options = SparseLoCoOptions(every=1, learning_rate=1.0, clip=False, **ALL)
    strategy = SparseLoCo(RoundTraining(cast(Reducer, Halved()), [place], 1.0), options)
    place.data -= 1.0
    strategy.before_step()
    strategy.after_step()
    assert place.data.tolist() == [0.5] * 4
