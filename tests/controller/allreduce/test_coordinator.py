"""The coordinator of members that reduce in rounds, told events and asked for actions: nothing is sent or started."""

from __future__ import annotations

import dataclasses
import json
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from testbed.api.requests import ForcePlan, ForcePolicy
from testbed.controller.allreduce.coordinator import AllReduceCoordinator
from testbed.controller.model.actions import Action, Actions, After, Background, Contradiction, Fail, Tell, TellAll
from testbed.controller.model.spec import Elasticity
from testbed.controller.replanning.decision import NEWEST
from testbed.controller.replanning.planner import OVERDUE, RESERVE_S, SAVED_S
from testbed.plan import Plan
from testbed.planning import Pair, Policy, PolicyError, View, make_policy
from testbed.planning.fastest import with_site_groups
from testbed.protocol import (
    Abort,
    Arrived,
    Confirm,
    ControlMessage,
    Goodbye,
    Held,
    Hello,
    Holding,
    Lost,
    PeerSample,
    Prepare,
    Reach,
    Reconfigure,
    Rejoin,
    Renew,
    Report,
    Stop,
    Train,
    Unreached,
    Welcome,
)
from testbed.simulation.event_queue import SimulatedClocks
from testbed.telemetry.store import finite, read_records
from tests.controller.runs import ROUNDS, mesh, spec_of

pytestmark = pytest.mark.pure

VIEW = mesh()
NAMES = VIEW.names
LOST = "b-w0"
OTHERS = tuple(name for name in NAMES if name != LOST)
ROSTER = dict.fromkeys(NAMES, ("10.0.0.1", 1))


class Told:
    """A coordinator, what it had sent, and what it asked to be called back for. Work is done at once, in order."""

    def __init__(self, out: Path, elastic: bool = True, begins: bool = True, view: View = VIEW, **changes: Any) -> None:
        changes = {"period_s": 3600.0, **changes}
        spec = spec_of(view, elastic=Elasticity(quorum=3) if elastic else None, **changes)
        assert spec.planning is not None
        self.clocks = SimulatedClocks(1.7e9)
        self.coordinator = AllReduceCoordinator(spec, spec.planning, out, self.clocks)
        self.sent: list[tuple[str, ControlMessage]] = []
        self.timers: list[Callable[[], Actions]] = []
        self.failure = ""
        self.unreached: tuple[str, ...] = ()  # by a member that waits to join
        self.coordinator.start()
        if begins:
            self.do(self.coordinator.begin({name: hello(name) for name in NAMES}))

    @property
    def plan(self) -> Plan:
        return self.coordinator.group.plans.plan

    def do(self, actions: Iterable[Action]) -> None:
        waiting = deque([*actions, *self.coordinator.proceed()])
        while waiting:
            match action := waiting.popleft():
                case Tell(member, Reach()):
                    waiting += [*self.coordinator.receive(Unreached(member, self.unreached))]
                    waiting += self.coordinator.proceed()
                case Tell(member, message):
                    self.sent.append((member, message))
                case TellAll(message):
                    self.sent += [(name, message) for name in NAMES]
                case After():
                    self.timers.append(action.then)
                case Background():
                    waiting += [*action.then(action.work()), *self.coordinator.proceed()]
                case Fail(reason):
                    self.failure = self.failure or reason

    def hear(self, message: ControlMessage) -> None:
        self.do(self.coordinator.receive(message))

    def take(self, kind: type[ControlMessage]) -> dict[str, Any]:
        """The messages of a kind since it was last asked for any, by member."""
        sent, self.sent = self.sent, []
        return {member: message for member, message in sent if isinstance(message, kind)}

    def go_round(self, number: int, epoch: int, names: Iterable[str] = NAMES) -> None:
        for name in names:
            self.hear(Report(name, number, epoch, 10.0 * number, 10.0 * number + 1, 0.1, 0.0, 0, 0, 0, 0))

    def force(self, server: str) -> None:
        self.coordinator.do(ForcePolicy(policy="star", options={"server": server}))
        self.do(())

    def lose(self, name: str) -> None:
        self.do(self.coordinator.receive(Goodbye(name, 0, error="out of memory")))

    def kinds(self) -> list[tuple[str, str]]:
        return [(event.kind, event.member) for event in self.coordinator.events]


@pytest.fixture
def told(tmp_path: Path) -> Iterator[Told]:
    made = Told(tmp_path)
    yield made
    made.coordinator.close()


def hello(name: str) -> Hello:
    return Hello(name, ("10.0.0.1", 4000))


def join_considered(told: Told) -> list[Action]:
    """Have the lost member join, which reaches the others. Returns the actions that consider a plan with it."""
    [*told.coordinator.join(hello(LOST))]
    return [*told.coordinator.receive(Unreached(LOST, ())), *told.coordinator.proceed()]


def change_routes(told: Told, routes: Mapping[Pair, tuple[str, ...]]) -> None:
    told.coordinator.change_network(VIEW.links, routes)
    told.do(())


def report_holdings(told: Told, names: Iterable[str]) -> None:
    for name in names:
        told.hear(holding(name, told.coordinator.group.plans.epochs.newest))


def holding(name: str, epoch: int) -> Holding:
    return Holding(name, epoch, round=1, over=True)


def test_members_begin_under_the_first_plan(told: Told) -> None:
    welcomes = told.take(Welcome)
    assert welcomes.keys() == set(NAMES)
    assert all(welcome.plan == told.plan.to_json() for welcome in welcomes.values())
    assert told.coordinator.running and not told.coordinator.over


def test_a_plan_is_prepared_held_confirmed_and_in_force_with_the_first_round_under_it(told: Told) -> None:
    told.go_round(1, epoch=0)
    told.force("d-w0")
    assert {Plan.from_json(its.plan).epoch for its in told.take(Prepare).values()} == {1}
    for name in OTHERS:
        told.hear(Held(name, 1))
    assert told.take(Confirm) == {}
    told.hear(Held(LOST, 1))
    assert told.take(Confirm) == dict.fromkeys(NAMES, Confirm(1))
    told.go_round(2, epoch=0)
    assert told.plan.epoch == 0
    told.go_round(3, epoch=1)
    assert told.plan.epoch == 1 and told.plan.trees[0].root == "d-w0"


def test_one_swap_at_a_time_and_a_refused_one_gives_way_to_the_next(told: Told, tmp_path: Path) -> None:
    told.force("d-w0")
    told.force("c-w0")
    assert {Plan.from_json(its.plan).epoch for its in told.take(Prepare).values()} == {1}
    told.hear(Held(LOST, 1, refusal="no connection"))
    plans = [Plan.from_json(its.plan) for its in told.take(Prepare).values()]
    assert {plan.epoch for plan in plans} == {2} and plans[0].trees[0].root == "c-w0"
    reasons = [(its["reason"], its["epoch"]) for its in read_records(tmp_path / "decisions.jsonl")]
    assert reasons == [("period", 0), ("forced", 1), ("dropped", None), ("forced", 2)]


def test_a_written_plan_has_the_codecs_of_the_run_or_is_refused(tmp_path: Path) -> None:
    edge = "a-w0->b-w0"
    told = Told(tmp_path, codec="fp16", link_codecs={edge: "int8"})
    own = told.plan.to_json()
    for request, details in (
        (ForcePlan(plan={**own, "codec": "int8"}), {"field": "codec", "given": "int8"}),
        (
            ForcePolicy(policy="given", options={"document": {**own, "codec": "fp32"}}),
            {"field": "codec", "given": "fp32"},
        ),
        (
            ForcePlan(plan={**own, "link_codecs": {edge: "bf16"}}),
            {"field": "link_codecs", "link": edge, "given": "bf16"},
        ),
    ):
        with pytest.raises(PolicyError) as caught:
            told.coordinator.do(request)
        assert caught.value.details == details
        assert told.coordinator.planner.policy.name == "mst"
    told.coordinator.do(ForcePlan(plan={**own, "link_codecs": {}}))
    assert told.coordinator.planner.policy.name == "given"
    told.coordinator.close()


def test_a_written_plan_with_groups_is_refused_where_members_may_go(told: Told) -> None:
    grouped = with_site_groups(told.plan, VIEW, 2)
    with pytest.raises(PolicyError) as caught:
        told.coordinator.do(ForcePlan(plan=grouped.to_json()))
    assert caught.value.rule == "groups"
    assert told.coordinator.planner.policy.name == "mst"


@pytest.mark.parametrize(
    "asked", [ForcePolicy(policy="cpn"), ForcePolicy(policy="hips", options={"period": 4})], ids=lambda its: its.policy
)
def test_a_policy_that_makes_groups_is_refused_where_members_may_go(
    told: Told, asked: ForcePolicy, tmp_path: Path
) -> None:
    with pytest.raises(PolicyError) as caught:
        told.coordinator.do(asked)
    assert caught.value.rule == "groups"
    assert told.coordinator.planner.policy.name == "mst"
    told.coordinator.do(ForcePolicy(policy="hips"))
    assert told.coordinator.planner.policy.name == "hips"
    (tmp_path / "other").mkdir()
    others = Told(tmp_path / "other", elastic=False).coordinator
    others.do(asked)
    assert others.planner.policy.name == asked.policy
    others.close()


def test_no_policy_or_plan_is_taken_once_the_run_is_over(told: Told) -> None:
    told.coordinator.end()
    for asked in (ForcePolicy(policy="star"), ForcePlan(plan=told.plan.to_json())):
        with pytest.raises(PolicyError) as caught:
            told.coordinator.do(asked)
        assert caught.value.rule == "over"
    assert told.coordinator.planner.policy.name == "mst" and not told.coordinator.planner.considering


def test_what_nobody_says_to_hold_in_time_is_dropped(told: Told) -> None:
    told.force("d-w0")
    late = told.timers[-1]
    told.do(late())
    assert told.coordinator.group.plans.pending is None and told.coordinator.group.plans.swaps == []
    told.do(late())  # of a swap that is over already


def test_a_plan_is_dropped_at_once_when_a_member_was_away_before_it_confirmed(told: Told) -> None:
    told.force("d-w0")
    for name in OTHERS:
        told.hear(Held(name, 1))
    told.force("c-w0")
    told.take(Prepare)
    told.do(told.coordinator.rejoin(*reconnection("a-w0", told.plan, 1)))
    assert told.take(Prepare) == {}, "this one has said so"
    told.do(told.coordinator.rejoin(*reconnection(LOST, told.plan, 1)))
    prepared = told.take(Prepare)
    assert {Plan.from_json(its.plan).epoch for its in prepared.values()} == {2} and prepared.keys() == set(NAMES)


def test_whatever_a_member_says_it_is_there(told: Told) -> None:
    leases = told.coordinator.group.membership.leases
    for message in (Arrived(LOST), Held(LOST, 7), holding(LOST, 7)):
        leases.disconnect(LOST)
        leases.report_peer("a-w0", LOST, "reset", True, 0.0)
        assert LOST in leases.lost_members(0.0)
        told.hear(message)
        assert LOST not in leases.lost_members(0.0)


def test_the_others_recover_from_a_loss_under_a_plan_without_the_member(told: Told, tmp_path: Path) -> None:
    told.go_round(1, epoch=0)
    told.force("d-w0")
    told.sent.clear()
    told.lose(LOST)
    halts = {member: message for member, message in told.sent if isinstance(message, Abort)}
    assert halts.keys() == set(OTHERS)
    [epoch] = {halt.epoch for halt in halts.values()}
    assert told.take(Stop)[LOST].again
    assert told.coordinator.group.plans.pending is None  # the swap under way was dropped with it
    for name in OTHERS:
        assert told.take(Reconfigure) == {}
        told.hear(holding(name, epoch))
    resumes = told.take(Reconfigure)
    assert resumes.keys() == set(OTHERS)
    plan = Plan.from_json(resumes["a-w0"].plan)
    assert plan.members == OTHERS and plan.epoch == epoch == told.plan.epoch
    assert json.loads((tmp_path / f"plans/{epoch:04d}.json").read_text()) == plan.to_json()
    assert told.kinds() == [("left", LOST)]
    told.go_round(2, epoch, OTHERS)
    assert [done.number for done in told.coordinator.group.rounds.complete] == [1, 2]


@dataclasses.dataclass(frozen=True)
class UsersPolicy(Policy):
    """A user's policy, which has a fault where a member is lost."""

    name: ClassVar[str] = "users"
    fault: str = ""

    def plan(self, view: View) -> Any:
        if len(view.names) < len(NAMES):
            if self.fault == "raises":
                raise KeyError(LOST)
            if self.fault == "none":
                return None
            view = view.among(frozenset(view.names[1:]))
        return make_policy("mst").plan(view)


@pytest.mark.parametrize("fault", ["raises", "none", "leaves one out"])
def test_a_user_s_policy_that_fails_without_a_lost_member_ends_no_run(told: Told, tmp_path: Path, fault: str) -> None:
    told.coordinator.planner.policy = UsersPolicy(fault)
    told.lose(LOST)
    report_holdings(told, OTHERS)
    assert told.take(Reconfigure).keys() == set(OTHERS)
    assert told.plan.members == OTHERS
    change_routes(told, VIEW.routes)
    *_, last = read_records(tmp_path / "decisions.jsonl")
    assert (last["reason"], last["policy"], last["adopted"]) == ("network", "users", False)
    assert told.take(Prepare) == {} and told.failure == ""


def test_a_swap_that_is_pending_while_a_broken_connection_is_mended_is_dropped(told: Told) -> None:
    check_leases = told.timers[0]
    told.go_round(1, epoch=0)
    told.force("d-w0")
    for name in NAMES:
        told.hear(Held(name, 1))
    told.hear(Lost("a-w0", LOST, "reset", 0))
    told.clocks.now_s = 4.0
    for name in NAMES:
        told.hear(Renew(name))
    told.clocks.now_s = 6.0
    told.sent.clear()
    told.do(check_leases())
    aborts = told.take(Abort)
    assert aborts.keys() == set(NAMES)
    for name in NAMES:
        told.hear(holding(name, aborts[name].epoch))
    assert told.take(Reconfigure).keys() == set(NAMES)
    assert told.coordinator.group.plans.pending is None
    told.force("c-w0")
    assert {Plan.from_json(its.plan).trees[0].root for its in told.take(Prepare).values()} == {"c-w0"}


@pytest.mark.parametrize("lost", [False, True], ids=["all stay", "one is lost meanwhile"])
def test_a_round_starts_again_under_the_adopted_plan_unless_a_member_is_lost_meanwhile(told: Told, lost: bool) -> None:
    told.go_round(1, epoch=0)
    told.sent.clear()
    better = make_policy("star", {"server": "d-w0"}).plan(VIEW)
    told.do(told.coordinator.swaps.adopt(better, "a link fell", "", True))
    assert {its.epoch for its in told.take(Abort).values()} == {1}
    names: tuple[str, ...] = NAMES
    if lost:
        names = OTHERS
        told.lose(LOST)
    report_holdings(told, names)
    resumed = told.take(Reconfigure)
    assert resumed.keys() == set(names)
    assert Plan.from_json(resumed["a-w0"].plan) == told.plan
    assert told.plan == (
        told.coordinator.maker.plan(told.coordinator.planner.policy, VIEW.among(OTHERS)).with_epoch(2)
        if lost
        else better.with_epoch(1)
    )
    told.go_round(2, told.plan.epoch, names)
    assert [done.number for done in told.coordinator.group.rounds.complete] == [1, 2]


def test_members_that_are_cut_off_are_lost_and_join_once_they_reach_most_others(told: Told) -> None:
    told.go_round(1, epoch=0)
    told.sent.clear()
    for name in OTHERS:
        told.hear(Unreached(name, (LOST,), 0))
    check_leases = told.timers[0]
    assert told.take(Stop) == {}, "it may not reach others either"
    for _ in range(11):
        told.clocks.now_s += 0.5
        for name in NAMES:
            told.hear(Renew(name))
        told.do(check_leases())
    assert told.take(Stop)[LOST].again
    report_holdings(told, OTHERS)
    assert told.plan.members == OTHERS
    told.unreached = OTHERS[:2]
    told.do(told.coordinator.join(hello(LOST)))
    again = told.timers.pop()
    assert not any(swap.joins for swap in told.coordinator.group.plans.swaps)
    told.unreached = OTHERS[:1]
    told.do(again())
    assert [swap.joins for swap in told.coordinator.group.plans.swaps if swap.joins] == [LOST]


def test_plans_have_no_edge_to_a_member_that_a_joining_one_can_t_reach(told: Told) -> None:
    told.lose(LOST)
    report_holdings(told, OTHERS)
    whole = told.coordinator.maker.plan(told.coordinator.planner.policy, VIEW)
    neighbour = min(whole.neighbours(LOST))
    told.unreached = (neighbour,)
    told.do(told.coordinator.join(hello(LOST)))
    (plan,) = (swap.plan for swap in told.coordinator.group.plans.swaps if swap.joins)
    assert neighbour not in plan.neighbours(LOST)
    told.coordinator.group.membership.record_apart(neighbour, frozenset())
    assert (LOST, neighbour) in told.coordinator.maker.view(told.clocks.now_s, LOST).edges, "it has joined again since"


def test_a_member_copies_its_state_from_one_that_it_reaches(told: Told) -> None:
    told.lose(LOST)
    report_holdings(told, OTHERS)
    told.do(told.coordinator.join(hello(LOST)))
    nearest = told.take(Welcome)[LOST].source
    told.lose(LOST)
    report_holdings(told, OTHERS)
    told.unreached = (nearest,)
    told.do(told.coordinator.join(hello(LOST)))
    assert told.take(Welcome)[LOST].source not in (nearest, "")


def test_a_member_that_has_no_plan_without_the_edges_that_it_lacks_is_asked_again(told: Told) -> None:
    told.lose(LOST)
    report_holdings(told, OTHERS)
    told.force(OTHERS[0])
    told.go_round(1, told.plan.epoch, OTHERS)
    told.sent.clear()
    told.unreached = OTHERS[:1]
    told.do(told.coordinator.join(hello(LOST)))
    assert told.take(Welcome) == {}
    told.do(told.timers.pop()())
    again = told.timers.pop()
    told.unreached = ()
    told.do(again())
    assert told.take(Welcome).keys() == {LOST}
    assert list(again()) == [], "a plan with it is under way"


def test_members_that_could_not_reach_each_other_go_on_together_if_only_they_are_left(tmp_path: Path) -> None:
    told = Told(tmp_path)
    one, other = NAMES[:2]
    told.coordinator.group.membership.quorum = 2
    told.coordinator.group.membership.record_apart(one, frozenset({other}))
    for name in NAMES[2:]:
        told.lose(name)
    report_holdings(told, (one, other))
    assert not told.failure and told.plan.members == (one, other)
    told.coordinator.close()


def test_a_member_is_not_blamed_for_a_round_that_is_over(told: Told) -> None:
    """The program of `a-w0` reports its rounds late."""
    told.go_round(1, epoch=0)
    check_leases = told.timers[0]
    told.hear(Lost("a-w0", LOST, "still waiting", 0, broken=False))
    told.hear(Renew("a-w0", 2))
    for _ in range(30):
        told.clocks.now_s += 0.5
        for name in NAMES:
            told.hear(Renew(name))
        told.do(check_leases())
    assert told.coordinator.present == frozenset(NAMES)


@pytest.mark.parametrize("gone", [True, False], ids=["it is gone", "it was restarted"])
def test_a_member_that_could_not_join_is_asked_no_more_once_its_process_ended(told: Told, gone: bool) -> None:
    told.lose(LOST)
    report_holdings(told, OTHERS)
    told.unreached = OTHERS
    told.do(told.coordinator.join(hello(LOST)))
    again = told.timers.pop()
    told.do(told.coordinator.died(LOST, "killed") if gone else told.coordinator.join(hello(LOST)))
    assert list(again()) == []


def test_a_report_of_an_earlier_generation_cuts_nobody_off(told: Told) -> None:
    told.lose(LOST)
    report_holdings(told, OTHERS)
    told.hear(Unreached("a-w0", OTHERS[1:], 0))
    assert told.coordinator.present == frozenset(OTHERS)


def test_a_round_that_lacked_only_the_lost_member_is_over_with_the_loss(told: Told) -> None:
    told.go_round(1, 0, OTHERS)
    assert told.coordinator.group.rounds.complete == []
    told.lose(LOST)
    assert [done.number for done in told.coordinator.group.rounds.complete] == [1]
    assert told.coordinator.events[0].round == 1


def test_a_member_that_comes_takes_part_from_the_first_round_under_its_plan(told: Told) -> None:
    told.lose(LOST)
    [epoch] = {halt.epoch for halt in told.take(Abort).values()}
    told.do(told.coordinator.join(hello(LOST)))
    assert told.take(Welcome) == {}  # the others are being reconfigured: it waits for that
    for name in OTHERS:
        told.hear(holding(name, epoch))
    assert told.take(Welcome).keys() == {LOST}
    [swap] = [swap for swap in told.coordinator.group.plans.swaps if swap.joins]
    for name in OTHERS:
        told.hear(Held(name, swap.plan.epoch))
    assert told.coordinator.present == frozenset(OTHERS)
    told.go_round(2, swap.plan.epoch)
    assert told.coordinator.present == frozenset(NAMES) and told.plan == swap.plan
    assert told.kinds() == [("left", LOST), ("came", LOST)]


def test_only_a_plan_s_members_prepare_and_confirm_it(told: Told) -> None:
    told.lose(LOST)
    report_holdings(told, OTHERS)
    told.force("d-w0")
    prepared = told.take(Prepare)
    assert prepared.keys() == set(OTHERS)
    epoch = Plan.from_json(prepared["a-w0"].plan).epoch
    told.do(told.coordinator.join(hello(LOST)))  # it waits for its Welcome until the swap is over
    told.hear(Held(LOST, epoch, refusal="the plan does not include it"))
    told.hear(Held(LOST, epoch))
    assert told.coordinator.group.plans.pending is not None
    told.sent.clear()
    for name in OTHERS:
        told.hear(Held(name, epoch))
    assert told.take(Confirm) == dict.fromkeys(OTHERS, Confirm(epoch))


def test_a_member_that_was_restarted_waits_for_its_welcome(told: Told) -> None:
    told.go_round(1, epoch=0)
    told.sent.clear()
    told.do(told.coordinator.join(hello(LOST)))
    assert {member for member, _ in told.sent} == set(OTHERS)
    assert told.take(Abort).keys() == set(OTHERS)
    report_holdings(told, OTHERS)
    assert told.take(Welcome).keys() == {LOST}
    assert told.kinds() == [("left", LOST)]


def test_a_member_without_links_joins_once_they_are_up(told: Told) -> None:
    told.lose(LOST)
    change_routes(told, {pair: route for pair, route in VIEW.routes.items() if LOST not in pair})
    report_holdings(told, OTHERS)
    told.sent.clear()
    told.do(told.coordinator.join(hello(LOST)))
    assert told.take(Welcome) == {}
    change_routes(told, VIEW.routes)
    assert told.take(Welcome).keys() == {LOST}


def test_a_member_joins_under_another_policy_where_the_run_s_has_no_plan(told: Told) -> None:
    """A star needs its server, which is lost."""
    told.force(LOST)
    told.lose(LOST)
    told.lose("c-w0")
    report_holdings(told, ("a-w0", "a-w1", "d-w0"))
    told.sent.clear()
    told.do(told.coordinator.join(hello("c-w0")))
    assert told.take(Welcome) == {}
    told.force("d-w0")
    assert told.take(Welcome).keys() == {"c-w0"}


def test_a_comer_that_goes_before_it_was_admitted_leaves_others_that_may_have_agreed_on_it(told: Told) -> None:
    told.lose(LOST)
    for name in OTHERS:
        told.hear(holding(name, told.coordinator.group.plans.epochs.newest))
    told.do(told.coordinator.join(hello(LOST)))
    assert told.take(Prepare).keys() == set(OTHERS)
    told.do(told.coordinator.died(LOST, "killed"))
    halts = told.take(Abort)
    assert halts.keys() == set(OTHERS) and LOST in halts["a-w0"].why


def test_a_comer_that_is_restarted_before_it_was_admitted_joins_as_its_new_process(told: Told) -> None:
    told.lose(LOST)
    report_holdings(told, OTHERS)
    told.sent.clear()
    told.do(told.coordinator.join(hello(LOST)))
    assert told.take(Welcome).keys() == {LOST}
    told.do(told.coordinator.join(hello(LOST)))
    assert {member for member, message in told.sent if isinstance(message, Abort)} == set(OTHERS)
    assert told.take(Stop) == {}
    report_holdings(told, OTHERS)
    assert told.take(Welcome).keys() == {LOST}


def test_a_comer_that_goes_while_its_plan_is_considered_disturbs_nobody(told: Told) -> None:
    told.lose(LOST)
    report_holdings(told, OTHERS)
    told.sent.clear()
    [proposed] = join_considered(told)
    assert isinstance(proposed, Background)
    told.do(told.coordinator.died(LOST, "killed"))
    told.do(proposed.then(proposed.work()))
    assert told.sent == [] and told.coordinator.group.plans.pending is None
    told.do(told.coordinator.join(hello(LOST)))
    assert told.take(Welcome).keys() == {LOST}


def test_the_budget_for_plans_grows_by_the_controller_s_own_clock(told: Told, tmp_path: Path) -> None:
    def considered() -> int:
        return len(list(read_records(tmp_path / "decisions.jsonl")))

    told.coordinator.planner._budget.spend(2 * SAVED_S)
    for number in range(1, 10):  # 90 s by the members' clocks
        told.go_round(number, epoch=0)
    assert considered() == 1, "the first plan"
    told.clocks.now_s = 90.0
    told.go_round(10, epoch=0)
    assert considered() == 2


@pytest.mark.parametrize("fell", [False, True])
def test_an_overdue_attempt_uses_the_reserve_only_after_a_fall(tmp_path: Path, fell: bool) -> None:
    def considered() -> int:
        return len(list(read_records(tmp_path / "decisions.jsonl")))

    told = Told(tmp_path, period_s=2.0)
    planner = told.coordinator.planner
    for number in range(1, 5):
        told.go_round(number, epoch=0)
    if fell:
        planner._track.link_fell()
    for number in range(5, 5 + NEWEST):  # later it is urgent no more
        told.go_round(number, epoch=0)
    before = considered()
    planner._budget.spend(SAVED_S - RESERVE_S / 2)
    told.clocks.now_s = OVERDUE * 2.0
    told.go_round(5 + NEWEST, epoch=0)
    assert considered() == before + fell


@pytest.mark.parametrize("meanwhile", ["withdrawn", "network", "lost"])
def test_the_budget_for_plans_pays_for_a_proposal_that_comes_too_late(told: Told, meanwhile: str) -> None:
    told.lose(LOST)
    report_holdings(told, OTHERS)
    [proposed] = join_considered(told)
    assert isinstance(proposed, Background)
    if meanwhile == "withdrawn":
        told.do(told.coordinator.died(LOST, "killed"))
    elif meanwhile == "network":
        change_routes(told, VIEW.routes)
    else:
        told.lose("c-w0")
    list(proposed.then(dataclasses.replace(proposed.work(), seconds=2 * SAVED_S)))
    assert not told.coordinator.planner._budget.allows(0.0, 0.0)


@pytest.mark.parametrize(("knowledge", "adopted"), [("oracle", True), ("declared", False)])
def test_a_plan_for_rates_that_changed_meanwhile_is_adopted_where_an_oracle_tells_them(
    tmp_path: Path, knowledge: str, adopted: bool
) -> None:
    told = Told(tmp_path, view=dataclasses.replace(VIEW, knowledge=knowledge))
    slower, later = mesh(b_d=10, a_c=10), mesh(b_d=11, a_c=10)
    told.coordinator.change_network(slower.links, slower.routes)
    [proposed] = told.coordinator.proceed()
    assert isinstance(proposed, Background)
    told.coordinator.change_network(later.links, later.routes)
    told.coordinator.change_network(later.links, later.routes)
    list(proposed.then(proposed.work()))
    assert (told.coordinator.group.plans.pending is not None) == adopted
    assert len(told.coordinator.planner._requests._queue) == 1
    told.coordinator.close()


def test_fewer_members_than_the_quorum_end_the_run(told: Told) -> None:
    told.lose("a-w0")
    told.lose("a-w1")
    assert told.failure == ""
    told.lose("b-w0")
    assert all(token in told.failure for token in ("b-w0", "out of memory", "2 members"))


def test_members_that_are_all_lost_at_once_end_the_run_as_failed(told: Told) -> None:
    told.do(told.coordinator._remove_members(dict.fromkeys(NAMES, "it did not renew its lease for 5 s")))
    assert "0 members" in told.failure
    assert not told.coordinator.over


def test_a_member_that_dies_after_its_goodbye_is_lost_once_another_one_waits_for_it(told: Told) -> None:
    leases = told.coordinator.group.membership.leases
    told.hear(Goodbye(LOST, 1, "d1635"))
    assert LOST not in leases.lost_members(1000.0)
    told.hear(Lost("a-w0", LOST, "still waiting for the mean", 0, broken=False))
    assert LOST in leases.lost_members(1000.0)


def test_a_loss_among_members_that_are_done_but_for_that_one_needs_no_recovery(told: Told) -> None:
    for name in OTHERS:
        told.hear(Goodbye(name, 1, "d1635"))
    told.take(Stop)
    told.lose(LOST)
    assert told.coordinator.over and told.take(Abort) == {} and told.kinds() == [("left", LOST)]
    assert list(told.coordinator.finish()) == [TellAll(Stop("done"))]


def test_where_members_may_not_go_a_death_ends_the_run(tmp_path: Path) -> None:
    told = Told(tmp_path, elastic=False)
    assert told.timers == []  # nobody has a lease
    told.do(told.coordinator.died(LOST, "its connection ended"))
    assert told.failure.startswith(f"{LOST}: ")
    told.coordinator.close()


MOMENTS = st.floats(0, 1e11)
FIGURES = st.none() | st.floats(allow_nan=False, allow_infinity=False)
TRAINS = st.builds(Train, st.floats(1e-3, 1e11), st.floats(1e-7, 1e6), *[st.integers(1, 2**53)] * 3)
ARRIVALS = st.dictionaries(st.sampled_from(NAMES), st.lists(TRAINS, max_size=3).map(tuple), max_size=3)
SAMPLES = st.builds(
    PeerSample, st.sampled_from(NAMES), st.integers(0, 2**53), *[st.floats(0, 1e9)] * 2, st.integers(0, 2**53)
)


def reports_of(name: str, number: int) -> st.SearchStrategy[Report]:
    return st.builds(
        Report,
        *(st.just(name), st.just(number), st.integers(0, 1), MOMENTS, MOMENTS, *[st.floats(0, 1e9)] * 2),
        *[st.integers(0, 2**53)] * 4,
        peers=st.lists(SAMPLES, max_size=2).map(tuple),
        metrics=st.dictionaries(st.sampled_from(["loss", "samples_per_s"]), FIGURES),
        arrivals=ARRIVALS,
    )


@pytest.mark.long
@settings(max_examples=25, derandomize=True, database=None, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_whatever_members_report_within_bounds_breaks_nothing(tmp_path: Path, data: st.DataObject) -> None:
    """Numbers that no network gives are taken or refused by the name of who said them: no other error comes of them."""
    told = Told(tmp_path)
    for number in (1, 2, 3):
        for name in NAMES:
            with suppress(Contradiction):
                told.hear(Arrived(name, data.draw(ARRIVALS)))
            with suppress(Contradiction):
                told.hear(data.draw(reports_of(name, number)))
    assert told.failure == ""
    json.dumps(finite([told.coordinator.status(), told.coordinator.final()]), allow_nan=False)
    told.coordinator.close()


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({"epoch": 1}, "unknown-epoch"),
        ({"waited": {"x": 1.0}}, "unknown-member"),
        ({"arrivals": {"x": ()}}, "unknown-member"),
        ({"peers": (PeerSample("x", 1, 1.0, 1.0, 0),)}, "unknown-member"),
    ],
)
def test_a_report_that_contradicts_what_is_known_of_the_run(told: Told, changes: dict[str, Any], rule: str) -> None:
    with pytest.raises(Contradiction) as caught:
        told.hear(replace(Report("a-w0", 1, 0, 10.0, 11.0, 0.1, 0.0, 0, 0, 0, 0), **changes))
    assert (caught.value.rule, caught.value.member, caught.value.round) == (rule, "a-w0", 1)
    told.go_round(1, 0)
    assert told.coordinator.group.rounds.count == 1


def test_a_returning_member_knows_no_more_plans_than_its_controller_has_made(told: Told) -> None:
    told.force("d-w0")
    plan, forged = told.plan, told.plan.with_epoch(1)
    list(told.coordinator.rejoin(hello("a-w0"), Rejoin("a-w0", forged.to_json(), ROSTER, 1, False, 1)))
    assert told.plan is plan  # what is in force is known by the rounds that were reported
    with pytest.raises(Contradiction) as caught:
        list(told.coordinator.rejoin(hello("a-w0"), Rejoin("a-w0", forged.to_json(), ROSTER, 1, False, 2**31)))
    assert (caught.value.rule, caught.value.member, caught.value.epoch) == ("unknown-epoch", "a-w0", 2**31)


def test_a_member_that_reports_a_round_that_is_long_over_is_contradicted(told: Told) -> None:
    told.go_round(1, epoch=0)
    told.go_round(2, epoch=0)
    told.lose(LOST)
    [epoch] = {halt.epoch for halt in told.take(Abort).values()}
    with pytest.raises(Contradiction) as caught:
        told.hear(Holding(OTHERS[0], epoch, 1, True))
    assert (caught.value.rule, caught.value.member, caught.value.round) == ("round-over", OTHERS[0], 1)
    for name in OTHERS:
        told.hear(Holding(name, epoch, 2, True))
    assert told.take(Reconfigure).keys() == set(OTHERS)


def test_a_member_that_holds_a_part_of_another_tensor_than_the_others_is_lost(told: Told) -> None:
    told.lose(LOST)
    [epoch] = {halt.epoch for halt in told.take(Abort).values()}
    odd, *others = OTHERS
    for name in OTHERS:
        told.hear(Holding(name, epoch, 1, False, 2**53 if name == odd else 100))
    assert told.coordinator.present == set(others)
    assert "round 1 of 9007199254740992 elements" in told.coordinator.events[-1].why
    [epoch] = {halt.epoch for halt in told.take(Abort).values()}
    for name in others:
        told.hear(Holding(name, epoch, 1, False, 100))
    assert told.take(Reconfigure).keys() == set(others)


def test_one_that_does_not_say_where_it_stands_did_not_come_back(told: Told) -> None:
    for rejoin, broken in (
        (Rejoin("a-w0", {}, {}, 1, False, 0), (None, "version")),
        (Rejoin("a-w0", told.plan.to_json(), {}, 1, False, 0), ("roster", None)),
        (Rejoin("a-w0", told.plan.to_json(), {"z": ("10.0.0.1", 1)}, 1, False, 0), ("unknown-member", None)),
        (Rejoin("a-w0", told.plan.with_epoch(9).to_json(), ROSTER, 1, False, 0), ("unknown-epoch", None)),
    ):
        with pytest.raises(Contradiction) as caught:
            list(told.coordinator.rejoin(hello("a-w0"), rejoin))
        assert (caught.value.rule, caught.value.field, caught.value.member) == (*broken, "a-w0")


def reconnection(name: str, plan: Plan, newest: int) -> tuple[Hello, Rejoin]:
    """Return the messages of a member that reconnects under a plan."""
    return hello(name), Rejoin(name, plan.to_json(), ROSTER, 0, False, newest)


def test_a_member_can_t_claim_an_epoch_that_was_never_handed_out(told: Told) -> None:
    with pytest.raises(Contradiction) as caught:
        told.do(told.coordinator.rejoin(*reconnection("a-w0", told.plan, 2**31)))
    assert (caught.value.rule, caught.value.member, caught.value.epoch) == ("unknown-epoch", "a-w0", 2**31)
    told.force("b-w0")
    assert told.take(Prepare)["a-w0"].plan["epoch"] == 1


def test_nobody_comes_back_to_a_run_that_has_not_begun_or_whose_members_do_not_come_back(tmp_path: Path) -> None:
    for made in (Told(tmp_path / "new", begins=False), Told(tmp_path / "static", elastic=False)):
        with pytest.raises(Contradiction) as caught:
            made.do(made.coordinator.rejoin(*reconnection("a-w0", made.plan, 0)))
        assert (caught.value.rule, caught.value.member) == ("not-begun", "a-w0")
        made.coordinator.close()


def test_a_restarted_controller_believes_no_epoch_but_those_before_it(tmp_path: Path) -> None:
    first = Told(tmp_path)
    first.lose(LOST)
    first.coordinator.close()
    again = Told(tmp_path, begins=False)
    plan = first.plan
    with pytest.raises(Contradiction) as caught:
        again.do(again.coordinator.rejoin(*reconnection("a-w0", plan, 2)))
    assert (caught.value.rule, caught.value.member, caught.value.epoch) == ("unknown-epoch", "a-w0", 2)
    stranger = Plan.from_json(json.loads(json.dumps(plan.to_json()).replace("c-w0", "x-w0")))
    with pytest.raises(Contradiction) as caught:
        again.do(again.coordinator.rejoin(*reconnection("a-w0", stranger, 1)))
    assert (caught.value.rule, caught.value.given) == ("unknown-member", "x-w0")
    again.do(again.coordinator.rejoin(*reconnection("a-w0", plan, 1)))
    assert again.coordinator.running and again.plan == plan
    again.lose("b-w0")
    assert {abort.epoch for abort in again.take(Abort).values()} == {2}
    again.coordinator.close()


def test_a_plan_that_members_agreed_on_while_the_controller_was_away_is_in_force(tmp_path: Path) -> None:
    """They had prepared for it under the one before, and go by the old one yet as they come back."""
    first = Told(tmp_path)
    first.go_round(1, epoch=0)
    first.force("d-w0")
    prepared = Plan.from_json(first.take(Prepare)["a-w0"].plan)
    first.coordinator.close()
    again = Told(tmp_path, begins=False)
    for name in NAMES:
        again.do(again.coordinator.rejoin(*reconnection(name, first.plan, 1)))
    again.go_round(2, epoch=0)
    assert again.plan.epoch == 0
    again.go_round(3, epoch=1)
    assert again.plan == prepared
    [swap] = again.coordinator.group.plans.swaps
    assert (swap.plan.epoch, swap.active_round) == (1, 3)
    again.coordinator.close()


def test_a_restarted_controller_knows_how_many_rounds_are_left(tmp_path: Path) -> None:
    first = Told(tmp_path)
    first.go_round(1, epoch=0)
    assert first.coordinator.maker.rounds_left == ROUNDS - 1
    first.coordinator.close()
    again = Told(tmp_path, begins=False)
    for name in NAMES:
        again.do(again.coordinator.rejoin(*reconnection(name, first.plan, 0)))
    again.go_round(ROUNDS - 2, epoch=0)
    assert again.coordinator.maker.rounds_left == 2
    again.coordinator.close()


def test_a_member_whose_plan_some_had_begun_when_the_controller_restarted_is_taken_back(tmp_path: Path) -> None:
    first = Told(tmp_path)
    first.lose(LOST)
    report_holdings(first, OTHERS)
    before = first.plan
    first.do(first.coordinator.join(hello(LOST)))
    [joined] = [swap.plan for swap in first.coordinator.group.plans.swaps if swap.joins]
    first.coordinator.close()
    again = Told(tmp_path, begins=False)
    behind, *others = OTHERS
    again.do(again.coordinator.rejoin(*reconnection(behind, before, joined.epoch)))
    for name in (*others, LOST):
        again.do(again.coordinator.rejoin(*reconnection(name, joined, joined.epoch)))
    assert again.take(Stop) == {}
    assert again.coordinator.present == frozenset(NAMES) and again.plan == joined
    again.go_round(2, joined.epoch)
    assert [done.number for done in again.coordinator.group.rounds.complete] == [2]
    again.coordinator.close()


def test_a_member_that_no_other_went_on_with_is_stopped_by_a_restarted_controller(tmp_path: Path) -> None:
    first = Told(tmp_path)
    first.lose(LOST)
    report_holdings(first, OTHERS)
    before = first.plan
    first.do(first.coordinator.join(hello(LOST)))
    [joined] = [swap.plan for swap in first.coordinator.group.plans.swaps if swap.joins]
    first.coordinator.close()
    again = Told(tmp_path, begins=False)
    for name, plan in ((OTHERS[0], before), (LOST, joined), *((name, before) for name in OTHERS[1:])):
        again.do(again.coordinator.rejoin(*reconnection(name, plan, joined.epoch)))
    assert again.take(Stop).keys() == {LOST}
    assert again.coordinator.present == frozenset(OTHERS) and again.plan == before
    again.coordinator.close()
