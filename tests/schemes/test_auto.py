"""The scheme `auto`: whatever plans choose, members change together, and hold the same bits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import permutations
from pathlib import Path

import pytest
import torch

from testbed import sync
from testbed.plan import Plan, TrainingChoice
from testbed.protocol import Held
from testbed.schemes import SCHEMES, TRAITS
from testbed.schemes.auto import ChosenStrategy
from testbed.schemes.training import RoundTraining
from testbed.sync.errors import SyncError
from tests.sync.controller import Controller, job
from tests.sync.plans import chain, names, star
from tests.sync.sessions import run, run_with
from tests.sync.strategies.training import around, flat, model, step

pytestmark = pytest.mark.local

MEMBERS = names(3)

#: A step before which plans are prepared, so that the next round among all agrees on them.
SWAPPED = (4, 13)
STEPS = 24

GRADIENTS = TrainingChoice("gradients")
CHOICES = (
    GRADIENTS,
    TrainingChoice("local_sgd", {"every": 2}),
    TrainingChoice("local_sgd", {"every": 4}),
    TrainingChoice("diloco", {"every": 3}),
    TrainingChoice("sparseloco", {"every": 3, "top_k": 4, "chunk": 4}),
    TrainingChoice("muloco", {"every": 3}),
)


def auto(session: sync.Session, net: torch.nn.Module, optimizer: torch.optim.Optimizer) -> ChosenStrategy:
    """Build the scheme as the worker does."""

    def moments() -> list[torch.Tensor]:
        kept = [value for state in optimizer.state.values() for value in state.values()]
        return [value for value in kept if value.dim()]

    scheme = SCHEMES["auto"]
    training = RoundTraining(
        session, list(net.parameters()), 1.0, chosen=lambda: session.plan.training, moments=moments
    )
    built = scheme.algorithm.build(scheme.read({}), training)
    assert isinstance(built, ChosenStrategy)
    return built


def train(
    tmp_path: Path, plans: Sequence[Plan], at_end: Callable[[torch.nn.Module, torch.optim.Optimizer], torch.Tensor]
) -> list[torch.Tensor]:
    """Train STEPS steps, with another plan from the round after each SWAPPED step on. Returns each member's end."""
    with Controller(tmp_path, plans[0], job()) as controller:

        def work(session: sync.Session) -> torch.Tensor:
            net = model()
            optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
            strategy = auto(session, net, optimizer)
            with around(strategy, optimizer):
                for number in range(STEPS):
                    if session.name == "m0" and number in SWAPPED:
                        index = SWAPPED.index(number) + 1
                        controller.prepare(plans[index])
                        controller.await_messages(Held, 3 * index)
                    step(net, optimizer, session.name, number)
                assert session.plan.epoch == plans[-1].epoch
                assert strategy.choice == plans[-1].training
            return at_end(net, optimizer)

        results = list(run_with(controller, work).values())
        assert all(report.lost == report.duplicated == 0 for report in controller.reports())
    return results


def plan(epoch: int, training: TrainingChoice | None, codec: str = "fp32") -> Plan:
    tree = chain(MEMBERS) if epoch % 2 else star(MEMBERS, "m1")
    return Plan(epoch, MEMBERS, (tree,), codec=codec, training=training)


@pytest.mark.parametrize(("one", "other"), list(permutations(CHOICES, 2)), ids=str)
def test_every_pair_hands_over_to_the_bit(tmp_path: Path, one: TrainingChoice, other: TrainingChoice) -> None:
    """Members change to the other scheme and back, with a codec in between."""
    plans = [plan(0, one), plan(1, other, codec="int8"), plan(2, one)]
    first, *others = train(tmp_path, plans, lambda net, _: flat(net))
    assert first.isfinite().all()
    assert all(torch.equal(first, its) for its in others)


def test_gradients_after_local_steps_find_the_optimizers_alike(tmp_path: Path) -> None:
    """Equal parameters are not enough: with different moments the members would part in the next step."""

    def everything(net: torch.nn.Module, optimizer: torch.optim.Optimizer) -> torch.Tensor:
        moments = [value for state in optimizer.state.values() for value in state.values() if value.dim()]
        return torch.cat([flat(net), *(value.flatten() for value in moments)])

    plans = [plan(0, GRADIENTS), plan(1, CHOICES[2]), plan(2, GRADIENTS)]
    first, *others = train(tmp_path, plans, everything)
    assert all(torch.equal(first, its) for its in others)


def test_sparseloco_keeps_its_residual_where_only_its_period_changes() -> None:
    class Alone:
        whole, slices = True, ()

        def allreduce(self, tensor: torch.Tensor, weight: float = 1.0, residual: object = None) -> Alone:
            return self

    def choice(every: int) -> TrainingChoice:
        return TrainingChoice("sparseloco", {"every": every, "top_k": 4, "chunk": 4})

    net, chosen = model(), [choice(1)]
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    training = RoundTraining(Alone(), list(net.parameters()), 1.0, chosen=lambda: chosen[0])  # type: ignore[arg-type]
    strategy = ChosenStrategy(training)
    strategy.before_step()
    step(net, optimizer, "m0", 0)
    strategy.after_step()
    left_out = strategy.state_dict()["strategy"]["error"]
    assert left_out.count_nonzero()
    chosen[0] = choice(2)
    strategy.before_step()
    assert strategy.choice == chosen[0]
    assert torch.equal(strategy.state_dict()["strategy"]["error"], left_out)


@pytest.mark.parametrize("scheme", [name for name, its in TRAITS.items() if its.worth is not None])
def test_local_steps_are_followed_by_one_round(tmp_path: Path, scheme: str) -> None:
    """The controller takes the length of a round for that of the exchange."""

    def work(session: sync.Session) -> int:
        net = model()
        optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
        with around(auto(session, net, optimizer), optimizer):
            for number in range(6):
                step(net, optimizer, session.name, number)
        return session.rounds

    assert set(run(tmp_path, plan(0, TrainingChoice(scheme, {"every": 3})), work).values()) == {2}


def test_a_plan_without_a_choice_is_of_gradients(tmp_path: Path) -> None:
    def work(session: sync.Session) -> str:
        net = model()
        return auto(session, net, torch.optim.SGD(net.parameters(), lr=0.1)).choice.scheme

    assert set(run(tmp_path, plan(0, None), work).values()) == {"gradients"}


@pytest.mark.parametrize("scheme", ["nothing", "hop", "auto"])
def test_an_unknown_choice_ends_training_by_its_name(tmp_path: Path, scheme: str) -> None:
    def work(session: sync.Session) -> None:
        net = model()
        with pytest.raises((ValueError, SyncError), match=scheme):
            auto(session, net, torch.optim.SGD(net.parameters(), lr=0.1))

    run(tmp_path, plan(0, TrainingChoice(scheme)), work)
