"""LOSCAR against its formula, and against SPARTA where both must be equal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from testbed import sync
from testbed.plan import Plan
from testbed.schemes.loscar import Loscar, LoscarOptions
from testbed.schemes.options import Misfit
from testbed.schemes.sparta import Sparta, SpartaOptions, drawn
from testbed.schemes.training import RoundTraining
from tests.sync.controller import job
from tests.sync.plans import names, star
from tests.sync.sessions import run
from tests.sync.strategies.training import by_mean_gradient, flat, model, step, trained

pytestmark = pytest.mark.local

MEMBERS = names(3)
PLAN = Plan(0, MEMBERS, (star(MEMBERS, "m1"),))
STEPS = 6


def train(
    directory: Path, options: LoscarOptions | SpartaOptions, plan: Plan = PLAN
) -> dict[str, tuple[torch.Tensor, torch.Tensor, int]]:
    """Return each member's parameters after its last step and at the end, and the number of rounds."""
    build: Any = Loscar if isinstance(options, LoscarOptions) else Sparta
    results = trained(directory, plan, lambda its: build(its, options), STEPS, job(reproducible=True))
    first = next(iter(results.values()))[1]
    assert all(torch.equal(first, end) for _, end, _ in results.values())
    return results


def by_hand(share: float, delay: int) -> dict[str, torch.Tensor]:
    """Compute each member's parameters after its last step: x ← m + (z − y) at the places sent `delay` steps before."""
    nets = {member: model() for member in MEMBERS}
    optimizers = {member: torch.optim.SGD(net.parameters(), lr=0.1) for member, net in nets.items()}
    sent: dict[int, dict[str, torch.Tensor]] = {}
    for number in range(1, STEPS + 1):
        for member, net in nets.items():
            step(net, optimizers[member], member, number - 1)
        at = {member: flat(net) for member, net in nets.items()}
        count = max(1, round(share * len(at["m0"])))
        if number > delay:
            places = drawn(number - delay, count, at["m0"])
            y = sent[number - delay]
            mean = torch.stack(list(y.values())).mean(0)
            for member, values in at.items():
                values[places] = mean + (values[places] - y[member])
                nn.utils.vector_to_parameters(values, nets[member].parameters())
        places = drawn(number, count, at["m0"])
        sent[number] = {member: values[places].clone() for member, values in at.items()}
    return {member: flat(net) for member, net in nets.items()}


@pytest.mark.parametrize("delay", [1, 2, 4])
def test_it_is_its_formula(tmp_path: Path, delay: int) -> None:
    expected = by_hand(0.2, delay)
    for member, (last, _, rounds) in train(tmp_path, LoscarOptions(share=0.2, delay=delay)).items():
        torch.testing.assert_close(last, expected[member], atol=1e-6, rtol=1e-5)
        assert rounds == STEPS + 1


def test_without_a_delay_it_is_sparta_to_the_bit(tmp_path: Path) -> None:
    ours = train(tmp_path / "a", LoscarOptions(share=0.2, delay=0))
    theirs = train(tmp_path / "b", SpartaOptions(share=0.2))
    for member in MEMBERS:
        assert torch.equal(ours[member][0], theirs[member][0]) and torch.equal(ours[member][1], theirs[member][1])


def test_one_member_is_its_optimizer(tmp_path: Path) -> None:
    alone = Plan(0, ("m0",), (star(("m0",), "m0"),))
    ((_, end, _),) = train(tmp_path, LoscarOptions(share=0.5, delay=2), alone).values()
    torch.testing.assert_close(end, by_mean_gradient(STEPS, {"m0": 1.0}), atol=1e-6, rtol=1e-5)


def test_what_is_taken_in_leaves_the_mean_of_all_members_where_it_was(tmp_path: Path) -> None:
    """Without steps in between, members converge to the mean that they had."""

    def work(session: sync.Session) -> tuple[torch.Tensor, torch.Tensor]:
        place = nn.Parameter(torch.randn(400, generator=torch.Generator().manual_seed(int(session.name[1:]))))
        began = place.detach().clone()
        loscar = Loscar(RoundTraining(session, [place], 1.0), LoscarOptions(share=0.02, delay=3))
        for _ in range(120):
            loscar.after_step()
        loscar.state_dict()
        return began, place.detach().clone()

    results = run(tmp_path, PLAN, work)
    began, ended = (torch.stack([its[k] for its in results.values()]) for k in (0, 1))
    torch.testing.assert_close(began.mean(0), ended.mean(0), atol=1e-5, rtol=1e-5)
    assert (ended - ended.mean(0)).norm() < 0.5 * (began - began.mean(0)).norm()


def test_all_of_it_after_each_step_of_sgd_is_the_mean_gradient(tmp_path: Path) -> None:
    """Without a delay, and with each place drawn: there are thirty draws for each place."""

    def work(session: sync.Session) -> torch.Tensor:
        net = model()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        loscar = Loscar(RoundTraining(session, list(net.parameters()), 1.0), LoscarOptions(share=1.0, delay=0))
        loscar._count = 30 * len(flat(net))
        for number in range(STEPS):
            step(net, optimizer, session.name, number)
            loscar.after_step()
        return flat(net)

    expected = by_mean_gradient(STEPS, dict.fromkeys(MEMBERS, 1.0))
    for result in run(tmp_path, PLAN, work).values():
        torch.testing.assert_close(result, expected, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize(
    ("codec", "options", "name"), [("int8", {}, "codec"), ("fp32", {"codecs": True}, "options.codecs")]
)
def test_codecs_are_refused(codec: str, options: dict[str, bool], name: str) -> None:
    with pytest.raises(Misfit) as caught:
        LoscarOptions().check_plan("cpn", options, codec)
    assert caught.value.name == name


@pytest.mark.parametrize(("rounds", "steps"), [(10, 9), (1, 1)])
def test_as_many_steps_as_the_rounds_leave(rounds: int, steps: int) -> None:
    loscar = Loscar(RoundTraining(None, [torch.zeros(10)], 1.0), LoscarOptions())  # type: ignore[arg-type]
    assert loscar.over(rounds, steps) and not loscar.over(rounds, steps - 1)
