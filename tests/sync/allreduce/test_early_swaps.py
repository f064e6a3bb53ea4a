"""The rule of early commits: members run rounds and exchange messages in every possible order."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.plan import Plan
from testbed.sync.allreduce.early_swaps import SwapAgreement
from testbed.sync.allreduce.held_plans import HeldPlans
from testbed.sync.errors import FrameError, SyncError
from tests.sync.plans import names, plan_over_graph, random_groups

pytestmark = pytest.mark.pure

ROUNDS = 25
SWAPS = 6
#: The part of the plans that a root aborts after promises, and of the rounds among all that agree on another plan.
ABORTED, AGREED = 0.2, 0.5


@dataclass
class Trainee:
    """The state of a member that the rule needs."""

    plans: HeldPlans
    agreement: SwapAgreement = field(default_factory=SwapAgreement)
    begun: int = 0
    over: int = 0


class World:
    """Members, the messages in flight between them, and the epoch that each member used in each round."""

    def __init__(self, draw: random.Random) -> None:
        self.draw = draw
        self.members = names(draw.randint(2, 6))
        self.plans = {epoch: self._plan(epoch) for epoch in range(SWAPS + 1)}
        self.at = {member: Trainee(HeldPlans(member, self.plans[0])) for member in self.members}
        self.used: dict[int, dict[str, int]] = {}
        self.messages: list[Callable[[], None]] = []
        self._agreed: dict[int, int] = {}
        self._prepared = 0

    def _plan(self, epoch: int) -> Plan:
        plan = plan_over_graph(self.draw, self.members, epoch)
        if self.draw.randrange(4):
            return replace(random_groups(self.draw, plan), period=self.draw.randint(2, 7))
        return plan

    def run(self) -> None:
        """Run all rounds in a random order of events. Asserts that some event is always possible."""
        while any(trainee.over < ROUNDS for trainee in self.at.values()):
            possible = list(self._possible())
            assert possible, f"no member can proceed: {self.at}"
            self.draw.choice(possible)()

    def _possible(self) -> Iterator[Callable[[], None]]:
        yield from (partial(self._deliver, message) for message in self.messages)
        if self._prepared < SWAPS:
            yield self._prepare
        for member, trainee in self.at.items():
            if trainee.begun > trainee.over:
                if self._complete(member, trainee.begun):
                    yield partial(self._end, member)
            elif trainee.begun < ROUNDS and trainee.agreement.may_begin(trainee.begun + 1):
                yield partial(self._begin, member)

    def _deliver(self, message: Callable[[], None]) -> None:
        self.messages.remove(message)
        message()

    def _begin(self, member: str) -> None:
        trainee = self.at[member]
        trainee.begun += 1
        self._follow(trainee, trainee.begun)
        self.used.setdefault(trainee.begun, {})[member] = trainee.plans.agreed
        assert all(trainee.begun <= other.plans.last_before(other.begun) for other in self.at.values())

    @staticmethod
    def _follow(trainee: Trainee, number: int) -> None:
        trainee.plans.advance(trainee.agreement.epoch(number, trainee.plans.agreed))
        trainee.agreement.forget(trainee.plans.agreed)

    def _complete(self, member: str, number: int) -> bool:
        epoch = self.used[number][member]
        [group] = [group for group in self.plans[epoch].groups_in(number) if member in group.members]
        return set(group.members) <= self.used[number].keys()

    def _end(self, member: str) -> None:
        trainee = self.at[member]
        trainee.over = number = trainee.begun
        epoch = self.used[number][member]
        if self.plans[epoch].among_all(number):
            newer = self._prepared if self.draw.random() < AGREED else epoch
            trainee.plans.agree(epoch, self._agreed.setdefault(number, max(epoch, newer)))
        self._follow(trainee, number + 1)

    def _prepare(self) -> None:
        """Begin to commit another plan, without waiting for the previous one."""
        self._prepared += 1
        epoch, promises = self._prepared, dict[str, int]()
        for trainee in self.at.values():
            trainee.plans.keep(self.plans[epoch])
        aborts = self.draw.random() < ABORTED

        def promise(member: str) -> None:
            trainee = self.at[member]
            promises[member] = trainee.agreement.promise(epoch, trainee.begun)
            if len(promises) == len(self.members):
                first = 1 + max(promises.values())
                for one in self.members:
                    its = self.at[one].agreement
                    self.messages.append(partial(its.abort, epoch) if aborts else partial(its.commit, epoch, first))

        self.messages += [partial(promise, member) for member in self.members]


@given(st.integers(0, 2**32))
def test_all_members_go_by_one_plan_in_each_round_and_none_waits_for_ever(seed: int) -> None:
    world = World(random.Random(seed))
    world.run()
    for number in range(1, ROUNDS + 1):
        assert world.used[number].keys() == set(world.members)
        assert len(set(world.used[number].values())) == 1, f"round {number} used {world.used[number]}"


def test_a_plan_is_used_from_the_round_after_the_newest_that_anybody_had_begun() -> None:
    agreement = SwapAgreement()
    assert agreement.promise(3, 5) == 5
    assert agreement.may_begin(5) and not agreement.may_begin(6)
    agreement.commit(3, 8)
    assert agreement.may_begin(9)
    assert [agreement.epoch(number, 2) for number in (6, 7, 8)] == [2, 2, 3]


def test_a_newer_plan_that_a_round_among_all_agrees_on_makes_a_commit_void() -> None:
    agreement = SwapAgreement()
    agreement.promise(3, 5)
    agreement.commit(3, 8)
    assert agreement.epoch(7, 4) == 4 and agreement.epoch(8, 4) == 4


def test_an_aborted_plan_binds_no_more() -> None:
    agreement = SwapAgreement()
    agreement.promise(3, 5)
    agreement.abort(3)
    assert agreement.may_begin(6) and agreement.epoch(6, 2) == 2


def test_a_member_whose_promise_nobody_answers_any_more_ends_when_it_comes_to_it() -> None:
    agreement = SwapAgreement()
    agreement.promise(3, 5)
    agreement.lose(3, "m0 is gone")
    agreement.lose(4, "nothing was promised for this epoch")
    assert agreement.may_begin(5)
    with pytest.raises(SyncError) as caught:
        agreement.may_begin(6)
    assert (caught.value.rule, caught.value.round, caught.value.epoch) == ("not-decided", 6, 3)


@pytest.mark.parametrize("first", [4, 5])
def test_a_root_can_t_commit_what_was_not_promised(first: int) -> None:
    agreement = SwapAgreement()
    agreement.promise(3, 5)
    with pytest.raises(FrameError) as caught:
        agreement.promise(3, 5)
    assert (caught.value.rule, caught.value.epoch) == ("prepared-twice", 3)
    with pytest.raises(FrameError) as caught:
        agreement.commit(3, first)
    assert (caught.value.rule, caught.value.epoch, caught.value.round) == ("not-promised", 3, first)
    with pytest.raises(FrameError) as caught:
        agreement.commit(4, 9)
    assert (caught.value.rule, caught.value.epoch, caught.value.given) == ("not-promised", 4, None)
