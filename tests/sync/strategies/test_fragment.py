"""Members' distances from the mean when they merge, compared with the same by hand."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from testbed import sync
from testbed.plan import Plan
from testbed.protocol import FragmentDrift
from testbed.schemes.sparta import Sparta, SpartaOptions
from testbed.schemes.training import RoundTraining
from testbed.sync.strategies.diloco import DiLoCo
from testbed.sync.strategies.fragment import SUMS, DriftMeter, Fragment, sketch
from testbed.sync.strategies.local_sgd import LocalSgd
from tests.sync.plans import names, star
from tests.sync.sessions import run
from tests.sync.strategies.training import batch, flat, model, step

pytestmark = pytest.mark.local

MEMBERS = names(3)
PLAN = Plan(0, MEMBERS, (star(MEMBERS, "m1"),))
EVERY = 4


def trained(member: str) -> torch.nn.Module:
    """Return a member's model after its first EVERY steps."""
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for number in range(EVERY):
        step(net, optimizer, member, number)
    return net


def loss_of(net: torch.nn.Module, member: str) -> float:
    inputs, targets = batch(member, EVERY - 1)
    with torch.no_grad():
        return float((net(inputs) - targets).square().mean())


def measured(directory: Path, fragments: int = 0, rounds: int = 1) -> dict[str, list[FragmentDrift]]:
    def work(session: sync.Session) -> list[FragmentDrift]:
        net = model()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        weight = float(MEMBERS.index(session.name) + 1)
        if fragments:
            strategy = DiLoCo(session, list(net.parameters()), None, EVERY, fragments=fragments, weight=weight)
        else:
            strategy = LocalSgd(session, list(net.parameters()), None, EVERY, weight=weight)
        strategy.watch(lambda: loss_of(net, session.name), every=2)
        found: list[FragmentDrift] = []
        for number in range(rounds * EVERY):
            step(net, optimizer, session.name, number)
            strategy.after_step()
            found += strategy.drift()
        strategy.settle()
        return found

    return run(directory, PLAN, work)


def test_members_say_how_far_they_stand_from_the_weighted_mean(tmp_path: Path) -> None:
    found = measured(tmp_path, rounds=3)
    weights = torch.tensor([1.0, 2.0, 3.0])
    ends = torch.stack([flat(trained(member)) for member in MEMBERS])
    mean = (weights[:, None] * ends).sum(0) / weights.sum()
    middle = model()
    torch.nn.utils.vector_to_parameters(mean, middle.parameters())
    for member, end, weight in zip(MEMBERS, ends, weights.tolist(), strict=True):
        first, second, third = found[member]
        assert first.apart == pytest.approx(float((end - mean).norm()), rel=1e-4)
        assert first.moved == pytest.approx(float((mean - flat(model())).norm()), rel=1e-4)
        assert (first.fragment, first.weight) == (0, weight)
        assert first.loss_before == pytest.approx(loss_of(trained(member), member), rel=1e-4)
        assert first.loss_after == pytest.approx(loss_of(middle, member), rel=1e-4)
        assert second.loss_before is second.loss_after is None and third.loss_before is not None


def test_each_fragment_has_its_own(tmp_path: Path) -> None:
    found = measured(tmp_path, 2, rounds=2)
    for drifts in found.values():
        assert [drift.fragment for drift in drifts] == [0, 1, 0, 1]


def test_all_members_sums_cancel_out(tmp_path: Path) -> None:
    """The sketches are those of differences to their mean, so they add up to 0 with any signs."""
    found = measured(tmp_path)
    sums = torch.tensor([found[member][0].sketch for member in MEMBERS])
    assert float((torch.tensor([1.0, 2.0, 3.0])[:, None] * sums).sum(0).norm()) < 1e-2 * float(sums.norm())


@given(st.integers(1, 5000), st.integers(0, 2**32))
def test_sums_are_linear_and_keep_lengths(count: int, seed: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    one, other = torch.randn(2, count, generator=draw)
    sums = torch.tensor(sketch(one)) + torch.tensor(sketch(other))
    torch.testing.assert_close(torch.tensor(sketch(one + other)), sums, rtol=2e-3, atol=2e-2)
    if count > 20 * SUMS:
        assert float(torch.tensor(sketch(one)).norm()) == pytest.approx(float(one.norm()), rel=0.5)


def test_sparta_has_that_of_its_diloco(tmp_path: Path) -> None:
    def work(session: sync.Session) -> int:
        net = model()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        training = RoundTraining(session, list(net.parameters()), 1.0)
        strategy = Sparta(training, SpartaOptions(share=0.1, every=EVERY))
        strategy.watch(lambda: None, every=1)
        for number in range(2 * EVERY):
            step(net, optimizer, session.name, number)
            strategy.after_step()
        found = strategy.drift()
        strategy.settle()
        return len(found)

    assert set(run(tmp_path, PLAN, work).values()) == {2}


def test_a_failed_evaluation_gives_the_parameters_back() -> None:
    parameter = torch.zeros(3)
    fragment = Fragment([parameter], onward=False)
    parameter.fill_(1.0)
    with pytest.raises(ZeroDivisionError), fragment.at_anchor():
        assert not parameter.any()
        _ = 1 / 0
    assert parameter.eq(1.0).all()


@pytest.mark.parametrize("diverged", [float("nan"), float("inf")])
def test_a_merge_of_a_training_that_diverged_is_not_reported(diverged: float) -> None:
    meter = DriftMeter(0, lambda: None, every=1)
    for value in (diverged, 1.0):
        meter.sent(torch.tensor([value, 1.0]))
        with meter.merging(torch.tensor([value, 0.0]), weight=1.0):
            pass
    assert [(its.apart, its.moved) for its in meter.found] == [(1.0, 1.0)]
