"""MuLoCo against its formula, and without quantization against DiLoCo."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from testbed import sync
from testbed.plan import Plan
from testbed.schemes.muloco import MulocoOptions, build
from testbed.schemes.options import OuterOptions
from testbed.schemes.training import RoundTraining
from testbed.sync import Nesterov
from testbed.sync.codecs import by_name
from testbed.sync.strategies import DiLoCo, Strategy
from tests.sync.plans import chain, names
from tests.sync.sessions import run
from tests.sync.strategies.training import by_mean_gradient, flat, model, sgd, step

pytestmark = pytest.mark.local

MEMBERS = names(2)
PLAN = Plan(0, MEMBERS, (chain(MEMBERS),))
STEPS, EVERY = 12, 3

Make = Callable[[RoundTraining], Strategy]


def muon(net: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Muon([parameter for parameter in net.parameters() if parameter.dim() == 2], lr=0.05)


def train(
    directory: Path, plan: Plan, make: Make, inner: Callable[[nn.Module], torch.optim.Optimizer] = muon
) -> torch.Tensor:
    """Return all members' parameters at the end."""

    def work(session: sync.Session) -> torch.Tensor:
        net = model()
        optimizer = inner(net)
        strategy = make(RoundTraining(session, list(net.parameters()), 1.0))
        for number in range(STEPS):
            step(net, optimizer, session.name, number)
            strategy.after_step()
        return flat(net)

    directory.mkdir(exist_ok=True)
    first, *others = run(directory, plan, work).values()
    assert all(torch.equal(first, other) for other in others)
    return first


def test_without_a_codec_it_is_diloco_to_the_bit(tmp_path: Path) -> None:
    ours = train(tmp_path / "a", PLAN, lambda its: build(MulocoOptions(every=EVERY), its))
    theirs = train(
        tmp_path / "b", PLAN, lambda its: DiLoCo(its.reducer, its.parameters, None, EVERY, Nesterov(0.8, 0.9))
    )
    assert torch.equal(ours, theirs)


def test_one_member_whose_outer_steps_are_whole_is_its_optimizer(tmp_path: Path) -> None:
    """With SGD: Muon rounds to bfloat16 inside, so a different last bit grows to a hundredth within these steps."""
    alone = Plan(0, ("m0",), (chain(("m0",)),), codec="bins2")
    options = MulocoOptions(every=EVERY, outer=OuterOptions(learning_rate=1.0, momentum=0.0))
    ours = train(tmp_path, alone, lambda its: build(options, its), sgd)
    torch.testing.assert_close(ours, by_mean_gradient(STEPS, {"m0": 1.0}), atol=1e-6, rtol=1e-5)


def test_it_is_its_formula(tmp_path: Path) -> None:
    """Only m1's changes are coded: e ← βe + Δ, q = Q(e), e ← e − q."""
    plan = Plan(0, MEMBERS, PLAN.trees, link_codecs={"m1->m0": "bins2"})
    ours = train(tmp_path, plan, lambda its: build(MulocoOptions(every=EVERY), its))
    codec, anchor = by_name("bins2"), flat(model())
    momentum, error = torch.zeros_like(anchor), torch.zeros_like(anchor)
    nets = {member: model() for member in MEMBERS}
    optimizers = {member: muon(net) for member, net in nets.items()}
    for first in range(0, STEPS, EVERY):
        for member, net in nets.items():
            for number in range(first, first + EVERY):
                step(net, optimizers[member], member, number)
        due = 0.9 * error + anchor - flat(nets["m1"])
        sent = codec.decode(codec.encode(due), len(due))
        error = due - sent
        change = (anchor - flat(nets["m0"]) + sent) / 2
        momentum = 0.9 * momentum + change
        anchor = anchor - 0.8 * (change + 0.9 * momentum)
        for net in nets.values():
            nn.utils.vector_to_parameters(anchor.clone(), net.parameters())
    # Rounding may take a value to the next bin: a bin is about a thousandth wide here.
    torch.testing.assert_close(ours, anchor, atol=1e-5, rtol=1e-4)


def test_two_bits_come_near_the_optimum_of_a_quadratic(tmp_path: Path) -> None:
    """Curvatures are equal, so the members' mean is unbiased. The decayed part is lost: a small distance remains."""
    members = names(3)
    plan = Plan(0, members, (chain(members),), codec="bins2")
    centres = {m: torch.randn(200, generator=torch.Generator().manual_seed(int(m[1:]))) for m in members}
    optimum = torch.stack(list(centres.values())).mean(0)

    def work(session: sync.Session) -> float:
        place = nn.Parameter(torch.zeros(200))
        optimizer = torch.optim.SGD([place], lr=0.02)
        options = MulocoOptions(every=4, outer=OuterOptions(learning_rate=0.8, momentum=0.5))
        strategy = build(options, RoundTraining(session, [place], 1.0))
        for _ in range(4 * 100):
            optimizer.zero_grad()
            (0.5 * (place - centres[session.name]).square().sum()).backward()
            optimizer.step()
            strategy.after_step()
        return (place.detach() - optimum).norm().item()

    assert max(run(tmp_path, plan, work).values()) < 0.1 * optimum.norm().item()
