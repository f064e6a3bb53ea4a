"""The controller with members of Hop, each in a thread, that exchange over loopback: one dies, and comes again."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from msgspec.structs import asdict, replace
from torch import Tensor

from testbed.api.requests import ForcePolicy
from testbed.controller.gossip.coordinator import GossipCoordinator
from testbed.controller.model.actions import Action, Actions, After, Announce, Contradiction, Fail, JoinRefused, Tell
from testbed.controller.model.clocks import SYSTEM, Clocks
from testbed.controller.model.coordinator import NotForMembers
from testbed.controller.model.spec import ControllerSpec, Elasticity, GossipGraph
from testbed.planning import View
from testbed.planning.graphs import ring, uniform
from testbed.protocol import (
    AbortGraph,
    CommitGraph,
    ControlMessage,
    Died,
    Goodbye,
    Hello,
    Job,
    Lost,
    NodeConfiguration,
    PrepareGraph,
    PromiseGraph,
    Rejoin,
    Report,
    Stop,
    Welcome,
)
from testbed.schemes import hop
from testbed.simulation.event_queue import SimulatedClocks
from testbed.sync.errors import Stopped
from tests.controller.fleet import connect
from tests.controller.runs import mesh, reaches, running, spec_of
from tests.waiting import PATIENCE_S, happens

pytestmark = pytest.mark.local

ROUNDS = 120
MAX_IG = 3
VIEW = mesh()
DIES = VIEW.names[2]


class Crash(Exception):
    """The cause of a member's death."""


def hop_spec(view: View = VIEW) -> ControllerSpec:
    made = ring(view.names)
    weights = uniform(made)
    jobs = {}
    for name in view.names:
        around = made.sources(name)
        place = asdict(NodeConfiguration("hop", around, around, weights[name], around, {"max_ig": MAX_IG, "backup": 1}))
        jobs[name] = Job(ROUNDS, scheme="hop", assignment=place, round_timeout_s=PATIENCE_S)
    graph = GossipGraph(edges=tuple(sorted(made.edges)), survives=True, max_ig=MAX_IG, backup=1)
    return spec_of(view, jobs=jobs, planning=None, graph=graph, elastic=Elasticity(quorum=3))


class Runner(threading.Thread):
    """A member's whole life, from the parameters `value` on.

    It dies in the iteration `crash`, and with `silent` without a goodbye. Until somebody `came`, an iteration of its
    second half takes half a second, so that a member that joins has time.
    """

    def __init__(
        self,
        control: Path,
        name: str,
        value: float,
        crash: int | None = None,
        silent: bool = False,
        came: Callable[[], bool] = lambda: True,
    ) -> None:
        super().__init__(name=name, daemon=True)
        self.entered: list[int] = []
        self.result: Tensor | None = None
        self.error: BaseException | None = None
        self._control = control
        self._value = value
        self._crash = crash
        self._silent = silent
        self._came = came
        self.start()

    def run(self) -> None:
        try:
            self._take_part()
        except (Crash, Stopped) as error:
            self.error = error

    def _take_part(self) -> None:
        control, start = f"unix:{self._control}/{self.name}/control.sock", torch.full((3,), self._value)
        with hop.join(self.name, [start], control=control, listen="127.0.0.1", timeout=PATIENCE_S) as membership:

            def step(parameters: Tensor, iteration: int) -> Tensor:
                self.entered.append(iteration)
                if iteration == self._crash:
                    if self._silent:
                        membership._connection.close()
                    raise Crash
                slow_until = time.monotonic() + 0.5
                while iteration > ROUNDS // 2 and not self._came() and time.monotonic() < slow_until:
                    time.sleep(0.01)
                time.sleep(0.01)
                return torch.zeros(3)

            self.result = membership.train(step)


@pytest.mark.parametrize("silent", [True, False])
async def test_a_member_that_died_comes_again_at_its_neighbours_iteration(tmp_path: Path, silent: bool) -> None:
    async with running(hop_spec(), tmp_path) as controller:
        came: list[Runner] = []
        members = [
            Runner(
                tmp_path / "s",
                name,
                1.0,
                crash=20 if name == DIES else None,
                silent=silent,
                came=lambda: any(its.entered for its in came),
            )
            for name in VIEW.names
        ]
        await reaches(controller, lambda: bool(controller.status()["membership_events"]))
        came.append(Runner(tmp_path / "s", DIES, 0.0))
        members += came
        await reaches(controller, lambda: controller.state == "done")
        for member in members:
            await asyncio.to_thread(member.join, PATIENCE_S)
    final = json.loads((tmp_path / "out" / "final.json").read_text())
    assert [(its["kind"], its["member"]) for its in final["membership_events"]] == [("left", DIES), ("came", DIES)]
    [swap] = final["graph_swaps"]
    assert swap["joins"] == DIES and came[0].entered[0] == swap["first"] > 20
    assert final["gaps"]["violations"] == [] and final["rounds"] == ROUNDS
    assert {pair["since"] for pair in final["gaps"]["pairs"]} == {0, swap["first"]}
    # It begins with what its neighbours have, and what it brought counts nowhere.
    assert all(torch.allclose(its.result, torch.ones(3)) for its in members if its.result is not None)
    assert sum(its.result is not None for its in members) == len(VIEW.names)


async def test_a_member_that_joins_at_the_end_of_training_is_told_so(tmp_path: Path) -> None:
    async with running(hop_spec(), tmp_path) as controller:
        members = [Runner(tmp_path / "s", name, 1.0, crash=ROUNDS - 3 if name == DIES else None) for name in VIEW.names]
        await reaches(controller, lambda: bool(controller.status()["membership_events"]))
        # Until then it could still take part.
        await happens(lambda: any(ROUNDS - 3 in member.entered for member in members if member.name != DIES))
        members.append(Runner(tmp_path / "s", DIES, 0.0))
        await reaches(controller, lambda: controller.state == "done")
        for member in members:
            await asyncio.to_thread(member.join, PATIENCE_S)
    late = members[-1].error
    assert isinstance(late, Stopped) and not late.again


async def test_a_member_that_said_goodbye_keeps_the_channel_until_the_controller_closes_it(tmp_path: Path) -> None:
    """Else a message on its way to the member fails, and the goodbye is lost unread with the connection."""
    async with running(hop_spec(), tmp_path) as controller:
        members = [Runner(tmp_path / "s", name, 1.0) for name in VIEW.names]
        received, failed = controller.received, []

        def send_first(message: ControlMessage) -> None:
            if isinstance(message, Goodbye):
                connection = controller.server._connections[message.member]
                connection.send(AbortGraph())
                failed.append(connection._writer.transport.is_closing())
            received(message)

        controller.received = send_first  # type: ignore[method-assign]
        await reaches(controller, lambda: controller.state == "done")
        for member in members:
            await asyncio.to_thread(member.join, PATIENCE_S)
        assert failed == [False] * len(members)


async def test_hop_does_not_join_a_run_of_another_scheme(tmp_path: Path) -> None:
    place = asdict(NodeConfiguration("adpsgd", VIEW.names[1:], VIEW.names[1:], {}, VIEW.names[1:], {"active": True}))
    spec = hop_spec()
    jobs = {name: replace(job, scheme="adpsgd", assignment=place) for name, job in spec.jobs.items()}

    def joined(name: str) -> None:
        control = f"unix:{tmp_path}/s/{name}/control.sock"
        with pytest.raises(ValueError, match="adpsgd"):
            hop.join(name, [torch.zeros(3)], control=control, listen="127.0.0.1", timeout=PATIENCE_S)

    async with running(spec.model_copy(update={"jobs": jobs}), tmp_path):
        first, *others = VIEW.names
        joining = asyncio.create_task(asyncio.to_thread(joined, first))
        members = [await connect(tmp_path / "s", name) for name in others]
        await joining
        for member in members:
            member.writer.close()


async def test_no_plan_is_made_for_members_that_gossip(tmp_path: Path) -> None:
    async with running(hop_spec(), tmp_path) as controller:
        members = [await connect(tmp_path / "s", name) for name in VIEW.names]
        for member in members:
            welcome = await member.read()
            assert isinstance(welcome, Welcome) and welcome.plan == {} and tuple(welcome.roster) == VIEW.names
        controller.change_network(VIEW.links, VIEW.routes)
        with pytest.raises(NotForMembers) as caught:
            controller.do(ForcePolicy(policy="star"))
        assert caught.value.given == "ForcePolicy"
        status = controller.status()
        assert status["plan"] is None and status["policy"] is None and status["swaps"] == []
        for member in members:
            member.send(Goodbye(member.name, ROUNDS))
        await asyncio.wait_for(controller.finished.wait(), PATIENCE_S)
        for member in members:
            member.writer.close()
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"rounds.jsonl", "arrivals.jsonl", "final.json"}


async def test_a_run_with_fewer_members_than_its_quorum_has_failed(tmp_path: Path) -> None:
    async with running(hop_spec().model_copy(update={"elastic": Elasticity(quorum=5)}), tmp_path) as controller:
        members = [Runner(tmp_path / "s", name, 1.0, crash=5 if name == DIES else None) for name in VIEW.names]
        await asyncio.wait_for(controller.finished.wait(), PATIENCE_S)
        for member in members:
            await asyncio.to_thread(member.join, PATIENCE_S)
        assert "4 members" in controller.failure


def hello(name: str) -> Hello:
    return Hello(name, ("10.0.0.1", 4000))


def begun(clocks: Clocks = SYSTEM) -> GossipCoordinator:
    """A coordinator whose members have all come; it is told events and asked for actions, and nothing is sent."""
    spec = hop_spec()
    assert spec.graph is not None
    coordinator = GossipCoordinator(spec, spec.graph, clocks)
    list(coordinator.begin({name: hello(name) for name in VIEW.names}))
    return coordinator


def told(actions: Actions, kind: type[ControlMessage]) -> set[str]:
    """The members that are sent a message of a kind."""
    return {action.member for action in actions if isinstance(action, Tell) and isinstance(action.message, kind)}


OTHERS = set(VIEW.names) - {DIES}


def test_the_others_are_told_of_a_death_and_asked_for_a_graph_with_one_that_comes() -> None:
    coordinator = begun()
    assert told(coordinator.died(DIES, "killed"), Died) == OTHERS
    assert coordinator.present == frozenset(OTHERS)
    assert list(coordinator.proceed()) == []
    assert list(coordinator.join(hello(DIES))) == []
    assert told(coordinator.proceed(), PrepareGraph) == OTHERS
    assert list(coordinator.proceed()) == []  # one change at a time
    welcomed = [told(coordinator.receive(PromiseGraph(name, 5)), Welcome) for name in sorted(OTHERS)]
    assert welcomed == [set()] * (len(OTHERS) - 1) + [{DIES}]
    assert coordinator.present == frozenset(VIEW.names)
    assert [(event.kind, event.member, event.round) for event in coordinator.events] == [
        ("left", DIES, 0),
        ("came", DIES, 5),
    ]


def test_a_member_that_comes_is_told_how_long_the_others_have_trained() -> None:
    clocks = SimulatedClocks(1.7e9)
    clocks.now_s = 20.0
    coordinator = begun(clocks)
    clocks.now_s += 70.0
    list(coordinator.died(DIES, "killed"))
    list(coordinator.join(hello(DIES)))
    list(coordinator.proceed())
    actions = [action for name in sorted(OTHERS) for action in coordinator.receive(PromiseGraph(name, 5))]
    messages = [action.message for action in actions if isinstance(action, Tell)]
    jobs = [message.job for message in messages if isinstance(message, Welcome)]
    places = [NodeConfiguration.from_json(job.assignment) for job in jobs]
    assert [(place.first, place.elapsed_s) for place in places] == [(5, 70.0)]


def judged(coordinator: GossipCoordinator, losses: list[tuple[str, str]]) -> list[Action]:
    """The actions at the end of the time in which reports of losses are collected."""
    later = [action for ends in losses for action in coordinator.receive(Lost(*ends, "timed out", generation=0))]
    (after,) = later
    assert isinstance(after, After)
    return list(after.then())


@pytest.mark.parametrize("first", [True, False])
def test_a_peer_that_is_cut_off_is_removed_and_stopped_and_may_come_again(first: bool) -> None:
    coordinator = begun()
    healthy = [(name, DIES) for name in VIEW.names[:2]]
    its = [(DIES, name) for name in VIEW.names if name != DIES]
    actions = judged(coordinator, its + healthy if first else healthy + its)
    assert told(iter(actions), Died) == OTHERS
    assert told(iter(actions), Stop) == {DIES}
    assert coordinator.present == frozenset(OTHERS)
    for more in (Lost(DIES, VIEW.names[0], "timed out", generation=0), Goodbye.with_error(DIES, 3, "asked to stop")):
        assert list(coordinator.receive(more)) == []


def test_of_two_that_lost_each_other_the_one_reported_first_goes() -> None:
    coordinator = begun()
    one, other = VIEW.names[0], DIES
    assert told(iter(judged(coordinator, [(one, other), (other, one)])), Stop) == {DIES}


@pytest.mark.parametrize("first", [True, False])
def test_a_leaf_goes_and_not_the_centre_that_it_lost(first: bool) -> None:
    spec = hop_spec()
    centre, leaf = VIEW.names[0], VIEW.names[1]
    edges = tuple(sorted(edge for name in VIEW.names[1:] for edge in ((centre, name), (name, centre))))
    coordinator = GossipCoordinator(spec, GossipGraph(edges=edges, survives=True, max_ig=MAX_IG))
    list(coordinator.begin({name: hello(name) for name in VIEW.names}))
    losses = [(leaf, centre), (centre, leaf)]
    assert told(iter(judged(coordinator, losses if first else losses[::-1])), Stop) == {leaf}


def test_a_run_that_fails_by_a_loss_stops_nobody_for_it() -> None:
    coordinator = begun()
    for name in VIEW.names[:2]:
        list(coordinator.died(name, "killed"))
    actions = judged(coordinator, [(VIEW.names[3], DIES)])
    assert any(isinstance(action, Fail) for action in actions)
    assert told(iter(actions), Stop) == set()


def test_a_comer_that_dies_again_is_waited_for_no_more() -> None:
    coordinator = begun()
    list(coordinator.died(DIES, "killed"))
    list(coordinator.join(hello(DIES)))
    list(coordinator.proceed())
    assert told(coordinator.died(DIES, "killed"), AbortGraph) == OTHERS
    assert list(coordinator.proceed()) == []


def test_a_comer_that_was_restarted_is_known_by_its_new_address() -> None:
    coordinator = begun()
    list(coordinator.died(DIES, "killed"))
    list(coordinator.join(hello(DIES)))
    list(coordinator.proceed())
    address = ("10.0.0.1", 4001)
    assert told(coordinator.join(Hello(DIES, address)), AbortGraph) == OTHERS
    assert told(coordinator.proceed(), PrepareGraph) == OTHERS
    promises = [PromiseGraph(name, 5) for _ in range(2) for name in sorted(OTHERS)]
    actions = [action for promise in promises for action in coordinator.receive(promise)]
    messages = [action.message for action in actions if isinstance(action, Tell)]
    assert [its.roster for its in messages if isinstance(its, CommitGraph)] == [{DIES: address}] * len(OTHERS)
    assert [its.roster[DIES] for its in messages if isinstance(its, Welcome)] == [address]


def lonely() -> GossipCoordinator:
    """A coordinator with two members of a ring of five, next to each other; DIES has none of them for a neighbour."""
    spec = hop_spec().model_copy(update={"elastic": Elasticity(quorum=2)})
    assert spec.graph is not None
    coordinator = GossipCoordinator(spec, spec.graph)
    list(coordinator.begin({name: hello(name) for name in VIEW.names}))
    for name in VIEW.names[1:4]:
        assert not any(isinstance(action, Fail) for action in coordinator.died(name, "killed"))
    return coordinator


def test_a_comer_without_neighbours_waits_for_one_that_can_join() -> None:
    coordinator = lonely()
    for name in (DIES, VIEW.names[1]):
        list(coordinator.join(hello(name)))
    left = {VIEW.names[0], VIEW.names[4]}
    actions = list(coordinator.proceed())
    assert told(iter(actions), PrepareGraph) == left and told(iter(actions), Stop) == set()
    welcomed = [told(coordinator.receive(PromiseGraph(name, 5)), Welcome) for name in sorted(left)]
    assert welcomed == [set(), {VIEW.names[1]}]
    assert told(coordinator.proceed(), Stop) == set()  # the change has yet to take place


def test_comers_are_refused_where_none_of_them_has_a_neighbour() -> None:
    coordinator = lonely()
    list(coordinator.join(hello(DIES)))
    actions = list(coordinator.proceed())
    assert told(iter(actions), Stop) == {DIES}
    messages = [action.message for action in actions if isinstance(action, Tell)]
    (why,) = [message.reason for message in messages if isinstance(message, Stop)]
    assert all(name in why for name in VIEW.names[1:4]), "the comer, and the neighbours of which one has to come first"
    assert not any(name in why for name in (VIEW.names[0], VIEW.names[4]))


def test_nobody_is_let_in_when_one_is_at_its_end() -> None:
    coordinator = begun()
    list(coordinator.died(DIES, "killed"))
    list(coordinator.receive(Goodbye("a-w0", ROUNDS)))
    list(coordinator.join(hello(DIES)))
    assert told(coordinator.proceed(), Stop) == {DIES}
    assert list(coordinator.died(DIES, "its connection ended")) == [Announce()]  # as of one that was told to stop


def test_a_member_that_has_finished_is_refused_and_counts_as_present() -> None:
    coordinator = begun()
    list(coordinator.receive(Goodbye("a-w0", ROUNDS)))
    with pytest.raises(JoinRefused) as caught:
        list(coordinator.join(hello("a-w0")))
    assert (caught.value.rule, caught.value.member) == ("finished", "a-w0")
    assert coordinator.present == frozenset(VIEW.names) and coordinator.events == []


@pytest.mark.parametrize(
    ("report", "rule"),
    [
        (Report("a-w0", ROUNDS + 1, 0, 1.0, 2.0, 0.1, 0.0, 0, 0, 0, 0), "beyond-end"),
        (Report("a-w0", 1, 0, 1.0, 2.0, 0.1, 0.0, 0, 0, 0, 0, {"x": 1.0}), "unknown-member"),
    ],
)
def test_an_iteration_that_no_member_can_have_entered_is_refused(report: Report, rule: str) -> None:
    with pytest.raises(Contradiction) as caught:
        list(begun().receive(report))
    assert (caught.value.rule, caught.value.member) == (rule, "a-w0")


def test_a_member_that_was_not_asked_promises_nothing() -> None:
    with pytest.raises(Contradiction) as caught:
        list(begun().receive(PromiseGraph("a-w0", 5)))
    assert (caught.value.rule, caught.value.member) == ("not-asked", "a-w0")


def test_members_that_gossip_do_not_come_back_to_a_controller_that_was_away() -> None:
    with pytest.raises(ValueError) as caught:
        begun().rejoin(hello("a-w0"), Rejoin("a-w0", {}, {}, 1, False, 0))
    assert (caught.value.rule, caught.value.member) == ("no-return", "a-w0")
