"""Decoupled DiLoCo's members and their syncer, under simulated time."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Literal

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from testbed.schemes.decoupled_diloco import DecoupledOptions
from testbed.schemes.decoupled_diloco.learner import DecoupledLearner, SyncingLearner
from testbed.schemes.decoupled_diloco.syncer import FragmentChange, MergedFragment, MergedStep
from testbed.schemes.options import OuterOptions
from testbed.sync.codecs import by_name, rounded
from tests.sync.gossip.quadratic import Quadratics
from tests.sync.gossip.simulation import Conditions, Simulation

pytestmark = pytest.mark.pure

NAMES = ("a", "b", "c", "d")
#: What is merged is taken over as it is.
PLAIN = OuterOptions(learning_rate=1.0, momentum=0.0)
Change = Callable[[str, int, Tensor], Tensor]


class World:
    """Members and the simulation in which they run; `steps` counts the steps of each."""

    def __init__(
        self,
        options: DecoupledOptions,
        rounds: int,
        change: Change,
        conditions: Conditions | None = None,
        names: tuple[str, ...] = NAMES,
        elements: int = 3,
    ) -> None:
        self.steps = dict.fromkeys(names, 0)
        self.conditions = conditions or Conditions()
        self._change, self.conditions.change = change, self._count
        self.rounds, self.options, self.start = rounds, options, torch.zeros(elements)
        self.members: dict[str, DecoupledLearner] = {
            name: DecoupledLearner(name, names[0], options, self.start, rounds) for name in names[1:]
        }
        self.centre = SyncingLearner(names[0], names, options, self.start, rounds, lambda: self.simulation.now)
        self._names = names

    def run(self, *faults: Callable[[World], None]) -> float:
        self.simulation = Simulation({**self.members, self._names[0]: self.centre}, self.conditions)
        for fault in faults:
            fault(self)
        return self.simulation.run()

    def _count(self, member: str, iteration: int, parameters: Tensor) -> Tensor:
        self.steps[member] += 1
        return self._change(member, iteration, parameters)

    @property
    def models(self) -> list[Tensor]:
        return [member.parameters for member in (*self.members.values(), self.centre)]


def rough(seed: int) -> Conditions:
    """Make members of four speeds, with delays of up to a step's time; messages overtake each other."""
    draw = Random(seed)
    pace = {name: draw.choice((0.5, 1.0, 2.0, 4.0)) for name in NAMES}
    return Conditions(
        step_time=lambda member, _: pace[member], delay=lambda *_: draw.uniform(0, 1), random=draw, in_order=False
    )


def test_one_alone_is_its_inner_optimizer() -> None:
    problem = Quadratics(("a",), Random(1))
    world = World(DecoupledOptions(every=6, fragments=1, outer=PLAIN), 4, problem.change, names=("a",))
    world.run()
    expected = world.start
    for number in range(24):
        expected = expected + problem.change("a", number, expected)
    torch.testing.assert_close(world.centre.parameters, expected)


def test_a_step_to_a_round_and_all_in_it_is_gradient_averaging() -> None:
    """Gradients must not depend on the last step, which is under way when the mean arrives."""

    def change(member: str, number: int, parameters: Tensor) -> Tensor:
        return torch.full_like(parameters, float(NAMES.index(member) + 1))

    options = DecoupledOptions(every=1, fragments=1, quorum=4, merge="mean", outer=PLAIN)
    world = World(options, 5, change)
    world.run()
    for model in world.models:
        torch.testing.assert_close(model, torch.full((3,), 5 * 2.5))
    assert world.centre.syncer.changes == 4 * world.centre.syncer.merged == 20


@pytest.mark.long
@settings(max_examples=15)
@given(seed=st.integers(0, 2**32), quorum=st.integers(1, 4), fragments=st.sampled_from([1, 2, 4]))
def test_four_bits_both_ways_leave_all_with_the_same_bits_near_the_optimum(
    seed: int, quorum: int, fragments: int
) -> None:
    """Some members are late for merges, and messages overtake each other. Members begin 3 from the optimum."""
    options = DecoupledOptions(every=4, fragments=fragments, quorum=quorum, outer=PLAIN, codec="bins4")
    world = World(options, 40, lambda m, n, p: (3.0 - p) / 20, rough(seed), elements=40)
    world.run()
    assert all(torch.equal(model, world.centre.parameters) for model in world.models)
    assert float((world.centre.parameters - 3.0).abs().max()) < 0.6
    sent = [message for _, message in world.simulation.log]
    assert any(isinstance(message, MergedStep) for message in sent)
    assert not any(isinstance(message, MergedFragment) for message in sent)


def test_four_bits_leave_nothing_out_for_good() -> None:
    """A member's sent changes plus its residual at the end are the changes of all its steps."""
    step = torch.linspace(-2, 1, 300)
    options = DecoupledOptions(every=2, fragments=1, quorum=2, merge="mean", outer=PLAIN, codec="bins4")
    world = World(options, 20, lambda m, n, p: step, names=NAMES[:2], elements=300)
    world.run()
    sent = [its for (who, _), its in world.simulation.log if isinstance(its, FragmentChange) and who == "b"]
    passed = sum((rounded(by_name("bins4"), message.change) for message in sent), torch.zeros(300))
    changed = -sum(message.weight for message in sent) * step
    assert not torch.allclose(passed, changed, rtol=1e-4)
    torch.testing.assert_close(passed + world.members["b"]._left_out, changed, rtol=1e-4, atol=1e-4)


@settings(max_examples=25)
@given(seed=st.integers(0, 2**32), quorum=st.integers(1, 4), fragments=st.sampled_from([1, 2, 4]))
def test_all_end_with_the_same_bits_and_no_step_counts_twice(seed: int, quorum: int, fragments: int) -> None:
    """Each step adds 1 to every element of its member, so the changes in merges are at most the steps."""
    options = DecoupledOptions(every=4, fragments=fragments, quorum=quorum, merge="mean", outer=PLAIN)
    world = World(options, 6, lambda member, number, parameters: torch.ones_like(parameters), rough(seed), elements=8)
    world.run()
    assert all(torch.equal(model, world.centre.parameters) for model in world.models)
    sent = [(pair[0], message) for pair, message in world.simulation.log if isinstance(message, FragmentChange)]
    answered = [(member, message.fragment, message.round) for member, message in sent]
    assert len(set(answered)) == len(answered)
    for _, message in sent:
        torch.testing.assert_close(message.change, torch.full_like(message.change, -message.weight))
    for member, steps in world.steps.items():
        for number in range(fragments):
            counted = sum(message.weight for who, message in sent if (who, message.fragment) == (member, number))
            assert counted <= steps


def test_changes_count_by_the_steps_behind_them() -> None:
    """One member is three times as fast as the other, which is due after three steps."""
    conditions = Conditions(step_time=lambda member, _: 1.0 if member == "a" else 3.0)
    options = DecoupledOptions(every=3, fragments=1, quorum=2, merge="mean", outer=PLAIN)
    world = World(options, 1, lambda m, n, p: torch.full_like(p, 1.0 if m == "a" else 5.0), conditions, ("a", "b"))
    world.run()
    torch.testing.assert_close(world.centre.parameters, torch.full((3,), (9 * 9.0 + 3 * 15.0) / 12))


@pytest.mark.parametrize(("merge", "part"), [("mean", 0.2), ("radial", 0.5)])
def test_many_come_near_the_common_optimum(merge: str, part: float) -> None:
    """Where changes cancel, radial averaging keeps their length: members settle only as far as steps shrink."""
    problem = Quadratics(NAMES, Random(3))
    options = DecoupledOptions(every=3, fragments=3, quorum=3, merge=merge, outer=PLAIN)  # type: ignore[arg-type]
    world = World(options, 150, problem.change, Conditions(delay=lambda *_: 0.2, random=Random(1)))
    world.run()
    apart = problem.distance(world.start)
    assert max(problem.distance(model) for model in world.models) < part * apart


def uneven(members: int = 12, slow: int = 4) -> tuple[tuple[str, ...], dict[str, float]]:
    names = tuple(f"w{number}" for number in range(members))
    return names, {name: 8.0 if number >= members - slow else 1.0 for number, name in enumerate(names)}


def test_four_of_twelve_that_are_eight_times_slower_hold_nobody_up() -> None:
    names, pace = uneven()
    conditions = Conditions(step_time=lambda member, _: pace[member], delay=lambda *_: 0.3)
    world = World(DecoupledOptions(), 10, lambda m, n, p: torch.ones_like(p), conditions, names, elements=48)
    took = world.run()
    own = sum(took / seconds for seconds in pace.values())
    assert sum(world.steps.values()) > 0.98 * own
    slow = [
        message for (who, _), message in world.simulation.log if isinstance(message, FragmentChange) and pace[who] > 1
    ]
    assert len(slow) > 0.8 * 4 * world.centre.syncer.merged


@pytest.mark.parametrize(("overlap", "changes"), [(2, 1), (8, 12)])
def test_where_overlap_is_short_for_the_network_merges_say_so(overlap: int, changes: int) -> None:
    """A round trip takes three steps; half of `overlap` steps leaves one or four."""
    names, pace = uneven()
    conditions = Conditions(step_time=lambda member, _: pace[member], delay=lambda one, other: 1.5 * (one != other))
    world = World(DecoupledOptions(overlap=overlap), 6, lambda m, n, p: torch.ones_like(p), conditions, names, 48)
    world.run()
    assert world.centre.metrics["changes_per_merge"] == pytest.approx(changes, rel=0.1)


@pytest.mark.parametrize("codec", ["fp32", "bins4"])
def test_one_that_dies_and_comes_back_costs_less_than_its_own_steps(codec: Literal["fp32", "bins4"]) -> None:
    names, pace = uneven()
    pace["w1"] = 1.0

    def fault(world: World) -> None:
        def die() -> None:
            world.simulation.kill("w1")
            for name in names:
                if name != "w1":
                    world.simulation.tell(name, world.simulation.members[name].remove("w1"))

        def back() -> None:
            world.members["w1"] = DecoupledLearner("w1", "w0", world.options, world.start, world.rounds, first=3)
            world.simulation.revive("w1", world.members["w1"])
            world.simulation.begin("w1")

        world.simulation.after(60, die)
        world.simulation.after(120, back)

    conditions = Conditions(step_time=lambda member, _: pace[member], delay=lambda *_: 0.3)
    world = World(DecoupledOptions(codec=codec), 10, lambda m, n, p: torch.ones_like(p), conditions, names, elements=48)
    took = world.run(fault)
    assert took < 1.05 * 240
    own = sum(took / seconds for seconds in pace.values())
    assert own - sum(world.steps.values()) < 60 + 0.02 * own
    assert all(torch.equal(model, world.centre.parameters) for model in world.models)


def test_a_change_for_a_merge_that_is_over_is_left_out() -> None:
    """A member with a slow way to the syncer would have more and more changes waiting, of which none counts."""
    member = World(DecoupledOptions(fragments=2), 4, lambda name, step, parameters: parameters).members["b"]
    change = torch.ones(3)
    waiting = FragmentChange(0, 1, 1.0, change)
    assert member.stale("a", waiting, [FragmentChange(1, 2, 1.0, change), FragmentChange(0, 2, 1.0, change)])
    assert not member.stale("a", waiting, [FragmentChange(1, 2, 1.0, change)])
