"""Plans that come into force between rounds among all, over whole sessions, with lost controllers and roots."""

from __future__ import annotations

import random
import socket
import threading
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from testbed import sync
from testbed.plan import Group, Plan
from testbed.protocol import Held
from testbed.schemes import SCHEMES
from testbed.schemes.training import RoundTraining
from testbed.sync.allreduce.early_swaps import SwapConnection, SwapMessage, SwapStep
from testbed.sync.allreduce.group import AllReduceGroup
from testbed.sync.errors import FrameError, SyncError
from testbed.sync.transport import TransportSettings
from tests.sync.controller import Controller, job
from tests.sync.plans import names, random_groups, random_plan, star
from tests.sync.sessions import together
from tests.sync.swaps import Over
from tests.waiting import PATIENCE_S, until

pytestmark = pytest.mark.local

MEMBERS = names(4)
#: A period so long that no test reaches a round among all.
FAR = 1000


def halves(epoch: int, first: tuple[str, ...], period: int = FAR, root: str = "m0") -> Plan:
    """Return a plan of two groups, the members `first` and the others."""
    parts = (first, tuple(member for member in MEMBERS if member not in first))
    groups = tuple(Group(part, (star(part, part[0]),)) for part in parts)
    return Plan(epoch, MEMBERS, (star(MEMBERS, root),), groups=groups, period=period)


def epochs_used(controller: Controller, plan: Plan, before: Mapping[str, int], rounds: int) -> dict[str, list[int]]:
    """Run rounds with a swap. Returns the epochs that each member's rounds used.

    The plan is prepared when each member has run its number of rounds in `before`. Members go on when the plan is due.
    """
    ready = threading.Barrier(len(MEMBERS), action=lambda: controller.prepare(plan))
    newest = max(before.values())

    def work(session: sync.Session) -> list[int]:
        epochs = [session.allreduce(torch.ones(100)).epoch for _ in range(before[session.name])]
        ready.wait(PATIENCE_S)
        epochs += [session.allreduce(torch.ones(100)).epoch for _ in range(newest - len(epochs))]
        until(lambda: session.plan.epoch == plan.epoch)
        return epochs + [session.allreduce(torch.ones(100)).epoch for _ in range(rounds - newest)]

    return together(controller, work)


@pytest.mark.parametrize("behind", [0, 1, 3])
def test_a_plan_is_in_force_from_the_round_after_the_newest_begun(tmp_path: Path, behind: int) -> None:
    """One group is behind the other, and runs its rounds up to the commit under the old plan, as the other did."""
    old, new = halves(0, ("m0", "m1")), halves(1, ("m0", "m2"), root="m3")
    before = {member: 4 - behind * (member in ("m2", "m3")) for member in MEMBERS}
    with Controller(tmp_path, old, job()) as controller:
        epochs = epochs_used(controller, new, before, 7)
    assert all(its == [0] * 4 + [1] * 3 for its in epochs.values())


def test_training_goes_on_if_the_controller_dies_in_the_middle(tmp_path: Path) -> None:
    """The controller has sent Confirm to the plan's root only, which is enough."""
    old, new = halves(0, ("m0", "m1")), halves(1, ("m0", "m2"), root="m3")
    with Controller(tmp_path, old, job()) as controller:
        controller.confirms_to = ["m3"]
        epochs = epochs_used(controller, new, dict.fromkeys(MEMBERS, 3), 6)
    assert all(its == [0] * 3 + [1] * 3 for its in epochs.values())


def test_a_controller_that_dies_before_it_told_the_root_leaves_a_plan_to_the_next_round_among_all(
    tmp_path: Path,
) -> None:
    old, new = halves(0, ("m0", "m1"), period=4), halves(1, ("m0", "m2"), period=4, root="m3")
    ready = threading.Barrier(len(MEMBERS), action=lambda: controller.prepare(new))

    def work(session: sync.Session) -> list[int]:
        epochs = [session.allreduce(torch.ones(100)).epoch for _ in range(2)]
        ready.wait(PATIENCE_S)
        controller.await_messages(Held, len(MEMBERS))
        return epochs + [session.allreduce(torch.ones(100)).epoch for _ in range(5)]

    with Controller(tmp_path, old, job()) as controller:
        controller.confirms_to = ["m0", "m1", "m2"]
        epochs = together(controller, work)
    assert all(its == [0] * 4 + [1] * 3 for its in epochs.values())


def test_a_plan_that_is_overtaken_before_it_is_in_force_keeps_nobody_waiting(tmp_path: Path) -> None:
    """The root commits the plan nevertheless, and the newer one follows."""
    plans = [halves(epoch, ("m0", MEMBERS[1 + epoch % 3]), root=MEMBERS[epoch % 4]) for epoch in range(12)]

    def prepare() -> None:
        for plan in plans[1:]:
            controller.prepare(plan)

    ready = threading.Barrier(len(MEMBERS), action=prepare)

    def work(session: sync.Session) -> list[int]:
        epochs = [session.allreduce(torch.ones(100)).epoch for _ in range(2)]
        ready.wait(PATIENCE_S)
        while epochs[-1] < len(plans) - 1:
            epochs.append(session.allreduce(torch.ones(100)).epoch)
        return epochs

    with Controller(tmp_path, plans[0], job()) as controller:
        epochs = together(controller, work)
    assert len({tuple(its) for its in epochs.values()}) == 1


class EpochReducer:
    """A reducer that runs a session's rounds one at a time. `epoch` is that of the newest round."""

    def __init__(self, session: sync.Session) -> None:
        self._session = session
        self.name, self.members = session.name, session.members
        self.epoch = 0

    def allreduce(self, tensor: torch.Tensor, weight: float = 1.0, residual: Any = None, async_op: bool = False) -> Any:
        done = self._session.allreduce(tensor, weight, residual)
        self.epoch = done.epoch
        return Over(done) if async_op else done


def linear(
    session: sync.Session, name: str, options: Mapping[str, Any], taken: Mapping[str, int], last: int
) -> tuple[torch.Tensor, int]:
    """Train by a scheme down a constant slope of this member's own, until a round has used the last plan.

    Returns the parameters that all members agree on, and the number of rounds with steps.
    """
    weights = torch.nn.Parameter(torch.zeros(300))
    optimizer = torch.optim.SGD([weights], lr=1 / 64)
    own = float(1 + MEMBERS.index(session.name))
    rounds, scheme = EpochReducer(session), SCHEMES[name]
    steps = {"every": taken[session.name], "steps": tuple(taken.values())} if name == "hybrid" else {}
    strategy = scheme.algorithm.build(scheme.read(options), RoundTraining(rounds, [weights], 1.0, steps))
    while rounds.epoch < last:
        for _ in range(taken[session.name]):
            weights.grad = torch.full_like(weights, own)
            strategy.before_step()
            optimizer.step()
            strategy.after_step()
    counted = session.rounds
    strategy.settle()
    return weights.detach().clone(), counted


SCHEMES_IN_GROUPS: Mapping[str, tuple[Mapping[str, Any], Mapping[str, int]]] = {
    "hierarchical": ({"every": 2, "period": 4}, dict.fromkeys(MEMBERS, 2)),
    "hybrid": (
        {"every": 4, "outer": {"learning_rate": 1.0, "momentum": 0.0}},
        {"m0": 4, "m1": 2, "m2": 2, "m3": 1},
    ),
}


@pytest.mark.parametrize("dies", [False, True], ids=["", "and the controller dies"])
@pytest.mark.parametrize("name", SCHEMES_IN_GROUPS)
def test_each_step_of_a_scheme_counts_once_however_plans_are_swapped(tmp_path: Path, name: str, dies: bool) -> None:
    """All slopes are constant, so the parameters tell how many steps of each member they include."""
    draw, swaps = random.Random(name), 10
    options, taken = SCHEMES_IN_GROUPS[name]

    def plan(epoch: int) -> Plan:
        return replace(random_groups(draw, random_plan(draw, MEMBERS, epoch, 1024)), period=draw.randint(2, 9))

    def swap() -> None:
        controller.await_condition(lambda: len(controller.roster) == len(MEMBERS))
        for epoch in range(1, swaps + 1):
            following = plan(epoch)
            if dies and epoch == swaps:
                controller.confirms_to = [following.trees[0].root]
            controller.prepare(following)
            controller.await_condition(lambda: epoch == swaps or epoch in controller.in_force)  # noqa: B023

    def work(session: sync.Session) -> tuple[torch.Tensor, int]:
        return linear(session, name, options, taken, swaps)

    with Controller(tmp_path, plan(0), job()) as controller:
        thread = threading.Thread(target=swap)
        thread.start()
        found = together(controller, work)
        thread.join()
    rounds = {its for _, its in found.values()}
    first = found["m0"][0]
    assert len(rounds) == 1 and all(torch.equal(first, its) for its, _ in found.values())
    slope = sum(range(1, len(MEMBERS) + 1)) / len(MEMBERS)
    steps = rounds.pop() * sum(taken.values()) / len(MEMBERS)
    assert first.mean().item() == pytest.approx(-steps * slope / 64, rel=1e-5)


class Root:
    """The root of a plan as a SwapPeer: it sends the given messages, and then its connection is gone."""

    def __init__(self, *messages: SwapMessage) -> None:
        self.received: list[SwapMessage] = []
        self._messages = list(messages)

    def send(self, message: SwapMessage) -> None:
        self.received.append(message)

    def receive(self) -> SwapMessage:
        if not self._messages:
            raise ConnectionError("closed by m3")
        return self._messages.pop(0)

    def close(self) -> None:
        pass


@pytest.fixture
def alone() -> Iterator[AllReduceGroup]:
    """Yield the group of m0, whose peers do not answer. Its rounds inside its plan's group, m0 alone, end at once."""
    plan = halves(0, ("m0",))
    roster = dict.fromkeys(MEMBERS, ("127.0.0.1", 9))
    group = AllReduceGroup(plan, TransportSettings("m0", {}, 0.5), roster)
    group.plans.keep(halves(1, ("m0", "m1"), root="m3"))
    group.begin(torch.ones(10), 1.0)()
    yield group
    group.close()


def test_a_root_that_is_lost_before_its_decision_ends_the_members_that_have_promised(alone: AllReduceGroup) -> None:
    root = Root(SwapMessage(SwapStep.PREPARE, 1))
    with pytest.raises(ConnectionError):
        alone.swaps.serve(root)
    assert root.received == [SwapMessage(SwapStep.PROMISE, 1, 1)]
    with pytest.raises(SyncError) as caught:
        alone.begin(torch.ones(10), 1.0)
    assert (caught.value.rule, caught.value.round, caught.value.epoch) == ("not-decided", 2, 1)


def test_a_root_that_says_nothing_more_is_waited_for_no_longer_than_for_a_round(alone: AllReduceGroup) -> None:
    assert alone.swaps.promise(1) == 1
    with pytest.raises(SyncError) as caught:
        alone.begin(torch.ones(10), 1.0)
    assert (caught.value.rule, caught.value.round) == ("timeout", 2)


@pytest.mark.parametrize(
    "messages",
    [
        [SwapMessage(SwapStep.COMMIT, 1, 2)],
        [SwapMessage(SwapStep.PREPARE, 7)],
        [SwapMessage(SwapStep.PREPARE, 1), SwapMessage(SwapStep.COMMIT, 2, 2)],
        [SwapMessage(SwapStep.PREPARE, 1), SwapMessage(SwapStep.COMMIT, 1, 1)],
        [SwapMessage(SwapStep.PREPARE, 1), SwapMessage(SwapStep.PREPARE, 1)],
    ],
    ids=["unasked", "an unknown plan", "another plan", "a round that was begun", "again"],
)
def test_what_no_root_would_say_is_refused(alone: AllReduceGroup, messages: list[SwapMessage]) -> None:
    with pytest.raises(FrameError):
        alone.swaps.serve(Root(*messages))
    assert alone.plan.epoch == 0


def test_a_root_that_can_t_reach_a_member_leaves_the_plan_to_the_next_round_among_all(alone: AllReduceGroup) -> None:
    alone.plans.keep(halves(2, ("m0", "m1")))
    commit = alone.swaps.confirm(2)
    assert commit is not None
    commit()
    alone.begin(torch.ones(10), 1.0)()
    assert alone.plan.epoch == 0 and alone.plans.confirmed == 2


def test_no_connection_of_an_aborted_commit_is_closed_with_an_unread_promise(alone: AllReduceGroup) -> None:
    """The kernel would reset the connection, and would not repeat an abort that was lost."""
    told: list[tuple[str, str]] = []

    class Peer:
        def __init__(self, name: str) -> None:
            self._name, self._late = name, name == "m2"

        def send(self, message: SwapMessage) -> None:
            told.append((self._name, message.step.name))

        def receive(self) -> SwapMessage:
            told.append((self._name, "read"))
            if self._late:
                self._late = False
                raise TimeoutError
            return SwapMessage(SwapStep.PROMISE, 2, 1)

        def close(self) -> None:
            told.append((self._name, "closed"))

    alone.plans.keep(halves(2, ("m0", "m1")))
    peers = {name: Peer(name) for name in MEMBERS[1:]}
    alone.swaps.connect = lambda name, _: peers[name]
    commit = alone.swaps.confirm(2)
    assert commit is not None
    commit()
    assert [told.count((name, "read")) for name in MEMBERS[1:]] == [1, 2, 1]
    assert {what for _, what in told[-3:]} == {"closed"}


def test_garbage_on_a_connection_between_members_is_refused() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(bytes(9))
        with pytest.raises(FrameError) as caught:
            SwapConnection(ours, 1.0).receive()
        assert (caught.value.rule, caught.value.given) == ("unknown-step", 0)
