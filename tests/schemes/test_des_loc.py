"""DES-LOC against its formula, and in cases with a known result."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from testbed import schemes, sync
from testbed.plan import Plan
from testbed.schemes.des_loc import DesLoc, DesLocOptions
from testbed.schemes.options import Misfit
from testbed.schemes.training import RoundTraining
from testbed.schemes.wrapped import moments_of
from testbed.worker import optimizer as worker_optimizer
from tests.sync.plans import names, star
from tests.sync.sessions import run
from tests.sync.strategies.training import around, by_mean_gradient, flat, model, sgd, step

MEMBERS = names(3)
PLAN = Plan(0, MEMBERS, (star(MEMBERS, "m1"),))
STEPS = 12


def adam(net: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam(net.parameters(), lr=0.01)


def held(net: nn.Module, optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """Return the parameters, the first and the second moments, each as one tensor."""
    moments = moments_of(list(net.parameters()), [optimizer])
    return [flat(net), *(torch.cat([its.flatten() for its in moments[one::2]]) for one in (0, 1) if moments)]


def train(
    directory: Path, plan: Plan = PLAN, inner: Any = adam, steps: int = STEPS, **options: int
) -> dict[str, list[torch.Tensor]]:
    """Return what each member holds at the end; parameters are the same bits at all."""

    def work(session: sync.Session) -> list[torch.Tensor]:
        net = model()
        optimizer = inner(net)
        with schemes.wrap(net, optimizer, "des_loc", session=session, **options):
            for number in range(steps):
                step(net, optimizer, session.name, number)
        return held(net, optimizer)

    directory.mkdir(exist_ok=True)
    results = run(directory, plan, work)
    assert all(torch.equal(results[plan.members[0]][0], other[0]) for other in results.values())
    return results


@pytest.mark.local
@pytest.mark.parametrize("first", [1, 2, 3])
@pytest.mark.parametrize("second", [1, 4])
def test_it_is_its_formula(tmp_path: Path, first: int, second: int) -> None:
    """Each of x, u and v is the members' mean after the multiples of its own period, and a member's own otherwise."""
    nets = {member: model() for member in MEMBERS}
    optimizers = {member: adam(net) for member, net in nets.items()}
    for number in range(STEPS):
        for member, net in nets.items():
            step(net, optimizers[member], member, number)
        moments = [moments_of(list(net.parameters()), [optimizers[member]]) for member, net in nets.items()]
        parts = [[list(net.parameters()) for net in nets.values()]]
        parts += [[its[one::2] for its in moments] for one in (0, 1)]
        for period, part in zip((2, 2 * first, 2 * second), parts, strict=True):
            if not (number + 1) % period:
                for tensors in zip(*part, strict=True):
                    mean = torch.stack([its.detach() for its in tensors]).mean(0)
                    for its in tensors:
                        its.data.copy_(mean)
    results = train(tmp_path, every=2, first=first, second=second)
    for member, net in nets.items():
        for ours, theirs in zip(results[member], held(net, optimizers[member]), strict=True):
            torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=1e-5)


@pytest.mark.local
def test_after_a_round_with_all_moments_members_hold_the_same_bits(tmp_path: Path) -> None:
    first, *others = train(tmp_path, every=2).values()  # 6 rounds: K_v is over
    assert all(torch.equal(ours, theirs) for other in others for ours, theirs in zip(first, other, strict=True))


@pytest.mark.pure
def test_a_parameter_that_only_others_have_stepped_has_moments_of_zeros() -> None:
    used, unused = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(3))
    optimizer = torch.optim.Adam([used, unused])
    assert not any(its.any() for its in moments_of([used, unused], [optimizer])), "before the first step"
    assert moments_of([used, unused], [torch.optim.SGD([used, unused])]) == []
    used.sum().backward()
    optimizer.step()
    moments = moments_of([used, unused], [optimizer])
    assert [tuple(its.shape) for its in moments] == [(2,), (2,), (3,), (3,)]
    assert all(its.any() for its in moments[:2]) and not any(its.any() for its in moments[2:])


@pytest.mark.local
@pytest.mark.parametrize("inner", [adam, sgd])
def test_one_member_is_its_optimizer(tmp_path: Path, inner: Any) -> None:
    net = model()
    optimizer = inner(net)
    for number in range(STEPS):
        step(net, optimizer, "m0", number)
    results = train(tmp_path, Plan(0, ("m0",), (star(("m0",), "m0"),)), inner, every=1, first=1, second=1)
    for ours, theirs in zip(results["m0"], held(net, optimizer), strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.local
def test_with_one_step_of_sgd_it_is_the_mean_gradient(tmp_path: Path) -> None:
    results = train(tmp_path, inner=sgd, every=1)
    expected = by_mean_gradient(STEPS, dict.fromkeys(MEMBERS, 1.0))
    torch.testing.assert_close(results["m0"][0], expected, atol=1e-6, rtol=1e-5)


@pytest.mark.local
def test_it_comes_to_the_optimum_of_a_quadratic_if_moments_are_averaged(tmp_path: Path) -> None:
    """½·|x − c|² with each member's own c, and the optimum at their mean.

    A second moment of a member's own divides its gradient by its own distance from c. So without means of moments the
    fixed point is where these ratios cancel, 1.4 off.
    """
    centres = {"m0": torch.tensor([0.0, 0.0]), "m1": torch.tensor([1.0, 0.0]), "m2": torch.tensor([5.0, 3.0])}
    optimum = torch.stack(list(centres.values())).mean(0)

    def off(first: int, second: int) -> float:
        def work(session: sync.Session) -> float:
            place = nn.Parameter(torch.zeros(2))
            optimizer = torch.optim.Adam([place], lr=0.02)
            training = RoundTraining(session, [place], 1.0, moments=lambda: moments_of([place], [optimizer]))
            with around(DesLoc(training, DesLocOptions(every=2, first=first, second=second)), optimizer):
                for _ in range(1200):
                    optimizer.zero_grad()
                    (0.5 * (place - centres[session.name]).square().sum()).backward()
                    optimizer.step()
            return (place.detach() - optimum).norm().item()

        folder = tmp_path / f"{first} {second}"
        folder.mkdir()
        return max(run(folder, PLAN, work).values())

    assert off(3, 6) < 0.02
    assert off(10**6, 10**6) > 1


@pytest.mark.pure
def test_it_sends_half_of_what_local_adam_does() -> None:
    class Counting:
        whole = True
        sent = 0

        def allreduce(self, tensor: torch.Tensor, weight: float = 1.0) -> Counting:
            self.sent += tensor.numel()
            return self

    def sent(**options: int) -> int:
        values, reducer = torch.zeros(10), Counting()
        training: Any = RoundTraining(reducer, [values], 1.0, moments=lambda: [values.clone(), values.clone()])  # type: ignore[arg-type]
        its = DesLocOptions(every=4, **options)
        strategy = DesLoc(training, its)
        for _ in range(4 * 6):
            strategy.after_step()
        assert reducer.sent == pytest.approx(6 * 10 * its.round_share)
        return reducer.sent

    assert 2 * sent() == sent(first=1, second=1)


@pytest.mark.pure
def test_both_adams_keep_their_moments_in_pairs() -> None:
    parameters, gradient = torch.zeros(4), torch.full((4,), 2.0)
    own = worker_optimizer.Adam(0.1)
    own.step(parameters, gradient)
    mean, square = own.moments()
    weight = nn.Parameter(torch.zeros(4))
    theirs = torch.optim.Adam([weight], lr=0.1)
    weight.grad = gradient
    theirs.step()
    for ours, its in zip((mean, square), moments_of([weight], [theirs]), strict=True):
        torch.testing.assert_close(ours, its)


@pytest.mark.pure
def test_an_optimizer_with_other_moments_is_refused() -> None:
    values = torch.zeros(10)
    training: Any = RoundTraining(None, [values], 1.0, moments=lambda: [values] * 3)  # type: ignore[arg-type]
    with pytest.raises(Misfit) as caught:
        DesLoc(training, DesLocOptions(every=1)).after_step()
    assert caught.value.name == "optimizer"
