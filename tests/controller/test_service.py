from __future__ import annotations

import asyncio
import json
import logging
import re
import resource
import shutil
import stat
import threading
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import networkx as nx
import pytest

from testbed.api.requests import ForcePlan, ForcePolicy
from testbed.controller.allreduce import plan_swaps
from testbed.controller.model.actions import After
from testbed.controller.model.spec import Elasticity
from testbed.controller.server.member_server import STOPPED, JoinRefused
from testbed.plan import Plan
from testbed.planning import PolicyError, View, make_policy
from testbed.protocol import Goodbye, Held, Hello, Job, Rejoin, Report, Stop, Unreached, decode, encode
from testbed.telemetry.store import read_records
from tests.controller.fleet import connect
from tests.controller.runs import ROUNDS, group_of, mesh, plan_of, planner_of, running, spec_of, swaps_of, training
from tests.planning.networks import sites, view_of
from tests.waiting import PATIENCE_S, happens

pytestmark = pytest.mark.local

VIEW = mesh()


async def test_a_whole_run_is_followed_and_recorded(tmp_path: Path) -> None:
    async with training(spec_of(VIEW), tmp_path, VIEW) as (controller, fleet):
        assert controller.state == "running"
        await fleet.run(5)
        await fleet.leave()
        await asyncio.wait_for(controller.finished.wait(), PATIENCE_S)
        assert controller.state == "done"
    out = tmp_path / "out"
    reports = list(read_records(out / "rounds.jsonl"))
    assert len(reports) == 5 * 5 and {report["round"] for report in reports} == set(range(5))
    final = json.loads((out / "final.json").read_text())
    assert final["state"] == "done" and final["identical"] and final["rounds"] == 5
    assert final["members"]["a-w0"]["metrics"] == {"accuracy": 0.97}
    first, *later = read_records(out / "decisions.jsonl")
    view = View.from_json(json.loads((out / first["view"]).read_text()))
    assert first["last"] is None
    replayed = make_policy(first["policy"], first["options"]).plan(view)
    assert replayed.to_json() == json.loads((out / "plans/0000.json").read_text())
    assert 0 < first["bound_s"] <= first["proposed_s"]
    assert later and all(decision["last"] == 0 and decision["estimates"] for decision in later)


async def test_what_was_known_of_links_is_kept_each_round(tmp_path: Path) -> None:
    async with training(spec_of(VIEW), tmp_path, VIEW) as (_, fleet):
        await fleet.run(6)
    *_, last = looks = list(read_records(tmp_path / "out/estimates.jsonl"))
    assert len(looks) == 6
    assert last["links"]
    for link, estimate in last["links"].items():
        assert estimate["low_bps"] < estimate["rate_bps"] < estimate["high_bps"], link


async def test_a_declared_view_is_not_corrected(tmp_path: Path) -> None:
    view = replace(VIEW, knowledge="declared")
    async with training(spec_of(view), tmp_path, view) as (controller, fleet):
        await fleet.run(5)
        fleet.network = mesh(a_c=5, a_b=5)
        await fleet.run(10)
        assert swaps_of(controller) == []
        assert controller.status()["estimates"]  # measured and shown all the same


async def test_a_link_that_goes_down_makes_it_swap_at_once(tmp_path: Path) -> None:
    spec = spec_of(VIEW, period_s=3600.0, dwell_rounds=100)
    async with training(spec, tmp_path, VIEW) as (controller, fleet):
        await fleet.run(2)
        u, v = next((u[0], v[0]) for u, v, _ in plan_of(controller).edges() if u[0] != v[0])
        rest = nx.Graph((x, y, d) for x, y, d in full_graph().edges(data=True) if {x, y} != {u, v})
        fleet.network = rerouted = view_of(rest, {"a": 2}, VIEW.model_bytes, "measured")
        controller.change_network(rerouted.links, rerouted.routes)
        await happens(lambda: swaps_of(controller))
        await fleet.run(2)
        assert swaps_of(controller)[0].active_s is not None
        assert swaps_of(controller)[0].reason.startswith("network")


def full_graph() -> nx.Graph:
    rates = {"a_b": 40, "a_c": 60, "a_d": 50, "b_c": 45, "b_d": 55, "c_d": 35}
    return sites(*[(*name.split("_"), rate) for name, rate in rates.items()], delay=0.02)


async def test_a_network_in_two_parts_keeps_the_plan_and_says_so(tmp_path: Path) -> None:
    async with training(spec_of(VIEW, period_s=3600.0), tmp_path, VIEW) as (controller, _):
        down = {
            name: replace(link, up="d" not in (name[0], name[3])) if len(name) == 4 else link
            for name, link in VIEW.links.items()
        }
        controller.change_network(down, VIEW.routes)
        out = tmp_path / "out/decisions.jsonl"
        await happens(lambda: len(list(read_records(out))) == 2)
        decision = list(read_records(out))[-1]
        assert not decision["adopted"] and "connect" in decision["why"] and decision["bound_s"] is None


async def test_a_forced_plan_comes_into_force_and_stays(tmp_path: Path) -> None:
    async with training(spec_of(VIEW), tmp_path, VIEW) as (controller, fleet):
        await fleet.run(2)
        controller.do(ForcePolicy(policy="star", options={"server": "d-w0"}))
        await happens(lambda: swaps_of(controller))
        await fleet.run(20)
        assert plan_of(controller).policy == "star" and plan_of(controller).trees[0].root == "d-w0"
        assert [swap.plan.epoch for swap in swaps_of(controller)] == [1]
        assert fleet.epochs[-1] == 1


async def test_a_given_plan_comes_into_force_and_one_of_other_members_is_refused(tmp_path: Path) -> None:
    async with training(spec_of(VIEW), tmp_path, VIEW) as (controller, fleet):
        await fleet.run(2)
        written = make_policy("star", {"server": "d-w0"}).plan(VIEW)
        less = make_policy("star").plan(VIEW.among(frozenset(VIEW.names[1:])))
        with pytest.raises(PolicyError) as caught:
            controller.do(ForcePlan(plan=less.to_json()))
        assert (caught.value.field, caught.value.given) == ("members", (VIEW.names[0],))
        controller.do(ForcePlan(plan=written.to_json()))
        await happens(lambda: swaps_of(controller))
        await fleet.run(3)
        assert plan_of(controller).trees == written.trees and plan_of(controller).policy == "given"
        record = list(read_records(tmp_path / "out/decisions.jsonl"))[-1]
        again = make_policy(record["policy"], record["options"])
        assert again.plan(VIEW).trees == written.trees, "what was decided can be made again from its record"


async def test_a_second_request_waits_for_the_swap_under_way(tmp_path: Path) -> None:
    async with training(spec_of(VIEW), tmp_path, VIEW) as (controller, fleet):
        controller.do(ForcePolicy(policy="star", options={"server": "d-w0"}))
        controller.do(ForcePolicy(policy="star", options={"server": "b-w0"}))
        await happens(lambda: all(1 in member.plans for member in fleet.members.values()))
        assert len(swaps_of(controller)) == 1
        await fleet.run(4)
        assert [swap.plan.trees[0].root for swap in swaps_of(controller)] == ["d-w0", "b-w0"]
        assert plan_of(controller).epoch == 2


async def test_a_forced_plan_is_not_forgotten_for_a_change_of_the_network(tmp_path: Path) -> None:
    async with training(spec_of(VIEW, period_s=3600.0), tmp_path, VIEW) as (controller, fleet):
        controller.do(ForcePolicy(policy="star", options={"server": "d-w0"}))
        controller.do(ForcePolicy(policy="star", options={"server": "b-w0"}))
        controller.change_network(VIEW.links, VIEW.routes)
        await happens(lambda: all(1 in member.plans for member in fleet.members.values()))
        await fleet.run(4)
        assert [swap.plan.trees[0].root for swap in swaps_of(controller)] == ["d-w0", "b-w0"]


@dataclass
class Slow:
    """A policy that takes its time, and tells when it begins."""

    name: ClassVar[str] = "mst"
    measure = None

    def __post_init__(self) -> None:
        self.begun: list[View] = []
        self.go_on = threading.Event()

    def proposals(self, view: View, last: Plan) -> list[Plan]:
        self.begun.append(view)
        assert self.go_on.wait(PATIENCE_S)
        return make_policy("mst").proposals(view, last)


async def test_a_plan_made_while_the_network_changed_is_made_again(tmp_path: Path) -> None:
    async with training(spec_of(VIEW, period_s=3600.0), tmp_path, VIEW) as (controller, fleet):
        slow = Slow()
        planner_of(controller).policy = slow  # type: ignore[assignment]
        changed = mesh(b_d=10, a_c=10)
        controller.change_network(VIEW.links, VIEW.routes)
        await happens(lambda: len(slow.begun) == 1)
        controller.change_network(changed.links, changed.routes)
        fleet.network = changed
        slow.go_on.set()
        await happens(lambda: swaps_of(controller))
        assert slow.begun[0].links == VIEW.links and slow.begun[1].links == changed.links
        assert swaps_of(controller)[0].plan.shape() == make_policy("mst").plan(slow.begun[1]).shape()
        await fleet.run(3)
        assert [swap.plan.epoch for swap in swaps_of(controller)] == [1] and controller.state == "running"


async def test_a_refused_plan_is_dropped_and_another_comes_into_force(tmp_path: Path) -> None:
    async with training(spec_of(VIEW), tmp_path, VIEW) as (controller, fleet):
        await fleet.run(2)
        fleet.members["b-w0"].answer = "no connection to d-w0"
        controller.do(ForcePolicy(policy="star", options={"server": "d-w0"}))
        await happens(lambda: 1 in fleet.members["a-w0"].plans)
        await fleet.run(2)
        assert swaps_of(controller) == [] and controller.status()["pending_epoch"] is None
        fleet.members["b-w0"].answer = ""
        controller.do(ForcePolicy(policy="star", options={"server": "c-w0"}))
        await happens(lambda: swaps_of(controller))
        await fleet.run(4)
        assert plan_of(controller).trees[0].root == "c-w0" and 1 not in fleet.epochs
        assert fleet.epochs[-1] == plan_of(controller).epoch > 1
    dropped = [d for d in read_records(tmp_path / "out/decisions.jsonl") if d["reason"] == "dropped"]
    assert dropped[0]["why"] == "epoch 1 was dropped: b-w0 can't hold it: no connection to d-w0"
    assert not dropped[0]["adopted"] and dropped[0]["epoch"] is None


async def test_what_waits_for_a_swap_goes_on_when_it_is_dropped(tmp_path: Path) -> None:
    async with training(spec_of(VIEW, period_s=3600.0), tmp_path, VIEW) as (controller, fleet):
        fleet.members["b-w0"].answer = None
        controller.do(ForcePolicy(policy="star", options={"server": "d-w0"}))
        await happens(lambda: 1 in fleet.members["a-w0"].plans)
        controller.do(ForcePolicy(policy="star", options={"server": "c-w0"}))
        await fleet.run(2)
        fleet.members["b-w0"].send(Held("b-w0", 1, "no connection"))
        fleet.members["b-w0"].answer = ""
        await happens(lambda: all(2 in member.plans for member in fleet.members.values()))
        await fleet.run(2)
        assert plan_of(controller).trees[0].root == "c-w0"


async def test_a_member_that_says_nothing_does_not_hold_up_plans_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The wait for an answer begins once the other members have answered, which a busy host may hold up."""
    monkeypatch.setattr(plan_swaps, "HOLD_MARGIN_S", 0.1)
    jobs = dict.fromkeys(VIEW.names, Job(ROUNDS, round_timeout_s=0.1))
    async with training(spec_of(VIEW, jobs=jobs, period_s=3600.0), tmp_path, VIEW) as (controller, fleet):
        silent = fleet.members["b-w0"]
        silent.answer = None
        wait, plans = controller._wait, group_of(controller).plans

        async def wait_after_answers(action: After) -> None:
            await happens(lambda: plans.pending is None or len(plans.pending.holders) == len(VIEW.names) - 1)
            await wait(action)

        controller._wait = wait_after_answers  # type: ignore[method-assign]
        controller.do(ForcePolicy(policy="star", options={"server": "d-w0"}))
        out = tmp_path / "out/decisions.jsonl"
        await happens(lambda: "b-w0 did not say in time" in list(read_records(out))[-1]["why"])
        assert all(1 in member.plans for member in fleet.members.values() if member is not silent)
        assert swaps_of(controller) == []
        # It does hold it in the end, and all go by it: the controller follows.
        silent.plans, silent.successor = fleet.members["a-w0"].plans, 1
        await fleet.run(2)
        assert plan_of(controller).epoch == 1 == swaps_of(controller)[0].plan.epoch


async def test_a_member_s_death_fails_the_run_and_stops_the_others(tmp_path: Path) -> None:
    async with training(spec_of(VIEW), tmp_path, VIEW) as (controller, fleet):
        await fleet.run(2)
        fleet.members["b-w0"].writer.close()
        others = [member for name, member in fleet.members.items() if name != "b-w0"]
        await happens(lambda: all(member.stopped for member in others))
        assert controller.state == "failed"
        assert controller.failure == "b-w0: its connection ended before its goodbye" == others[0].stopped


async def test_a_member_s_error_fails_the_run(tmp_path: Path) -> None:
    async with training(spec_of(VIEW), tmp_path, VIEW) as (controller, fleet):
        fleet.members["b-w0"].send(Goodbye("b-w0", 0, error="out of memory"))
        await asyncio.wait_for(controller.finished.wait(), PATIENCE_S)
        assert controller.failure == "b-w0: out of memory"


@pytest.mark.parametrize(("name", "says"), [("x-w0", "'x-w0' is not a member"), ("b-w0", "certificate of 'a-w0'")])
async def test_a_hello_at_another_member_s_socket_is_refused_with_the_reason(
    tmp_path: Path, name: str, says: str
) -> None:
    async with running(spec_of(VIEW), tmp_path) as controller:
        stranger = await connect(tmp_path / "s", name, at="a-w0")
        await asyncio.wait_for(stranger.listen(), PATIENCE_S)
        assert says in (stranger.stopped or "")
        assert controller.state == "waiting" and controller.status()["joined"] == []
        stranger.writer.close()


async def test_a_member_that_comes_to_a_restarted_controller_before_the_others_joins_them(tmp_path: Path) -> None:
    names, comer = VIEW.names[:-1], VIEW.names[-1]
    roster = dict.fromkeys(names, ("10.0.0.1", 4000))
    elastic = Elasticity(quorum=2, lease_s=PATIENCE_S)
    epochs = tmp_path / "out" / "epochs.json"
    epochs.parent.mkdir()
    epochs.write_text(json.dumps({"newest": 1}))
    async with running(spec_of(VIEW, elastic=elastic, period_s=3600.0), tmp_path) as controller:
        plan = make_policy("mst").plan(VIEW.among(names)).with_epoch(1)  # the comer was lost before
        controller.joined(Hello(comer, ("10.0.0.1", 4000)))
        assert controller.state == "waiting"
        for name in names:
            rejoin = Rejoin(name, plan.to_json(), roster, 0, False, 1)
            controller.joined(Hello(name, roster[name], returns=True), rejoin)
        controller.received(Unreached(comer, ()))
        await happens(lambda: [swap.joins for swap in swaps_of(controller)] == [comer])
        assert plan_of(controller) == plan and controller.state == "running"


async def test_a_hello_as_another_member_does_not_evict_it_from_an_elastic_run(tmp_path: Path) -> None:
    async with training(spec_of(VIEW, elastic=Elasticity(quorum=2)), tmp_path, VIEW) as (controller, fleet):
        await fleet.run(2)
        impostor = await connect(tmp_path / "s", "b-w0", at="a-w0")
        await asyncio.wait_for(impostor.listen(), PATIENCE_S)
        assert "certificate of 'a-w0'" in (impostor.stopped or "")
        await fleet.run(2)
        assert fleet.members["b-w0"].stopped is None
        assert controller.status()["membership_events"] == [] and controller.state == "running"
        impostor.writer.close()


async def test_no_other_user_comes_to_a_member_s_socket(tmp_path: Path) -> None:
    """The folder above keeps others out; a container, whose program may be another user, has the inner one mounted."""
    sockets = tmp_path / "s"
    async with running(spec_of(VIEW), tmp_path):
        assert stat.filemode(sockets.stat().st_mode) == "drwx------"
        for name in VIEW.names:
            assert stat.filemode((sockets / name).stat().st_mode) == "drwxr-xr-x"
            assert stat.filemode((sockets / name / "control.sock").stat().st_mode) == "srw-rw-rw-"


async def test_members_sockets_may_lie_deeper_than_an_address_is_long(tmp_path: Path) -> None:
    deep = tmp_path / ("a-run-with-a-long-name-" * 5)
    async with running(spec_of(VIEW), deep):
        assert len(str(deep / "s/a-w0/control.sock")) > 107
        assert (deep / "s/a-w0/control.sock").is_socket()


async def test_a_member_that_is_there_already_is_refused(tmp_path: Path) -> None:
    async with training(spec_of(VIEW), tmp_path, VIEW) as (controller, fleet):
        double = await connect(tmp_path / "s", "a-w0")
        await asyncio.wait_for(double.listen(), PATIENCE_S)
        assert "already" in (double.stopped or "")
        await fleet.run(2)
        assert controller.state == "running"
        double.writer.close()


@pytest.mark.parametrize("line", [b"garbage\n", b'{"kind":"held","member":"a-w0","epoch":0}\n', b"{}\n", b"cut short"])
async def test_garbage_before_hello_ends_that_connection_only(tmp_path: Path, line: bytes) -> None:
    async with running(spec_of(VIEW), tmp_path) as controller:
        reader, writer = await asyncio.open_unix_connection(tmp_path / "s/a-w0/control.sock")
        writer.write(line)
        writer.write_eof()
        said = decode(await asyncio.wait_for(reader.read(), PATIENCE_S))
        assert isinstance(said, Stop) and "no valid hello" in said.reason
        writer.close()
        assert controller.state == "waiting"


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (b"garbage\n", "not a message"),
        (b'{"kind":"held","member":"b-w0","epoch":0}\n', "in the name of"),
        (b'{"kind":"report","member":"a-w0","round":"x"}\n', "got `str` - at `$.round`"),
        (b'{"kind":"stop","reason":"x"}\n', "in the name of"),
    ],
)
async def test_garbage_from_a_member_fails_the_run(tmp_path: Path, line: bytes, says: str) -> None:
    async with training(spec_of(VIEW), tmp_path, VIEW) as (controller, fleet):
        fleet.members["a-w0"].writer.write(line)
        await asyncio.wait_for(controller.finished.wait(), PATIENCE_S)
        assert controller.failure.startswith("a-w0: ") and says in controller.failure


async def test_a_round_reported_twice_fails_the_run(tmp_path: Path) -> None:
    async with training(spec_of(VIEW), tmp_path, VIEW) as (controller, fleet):
        report = Report("a-w0", 0, 0, 0.0, 1.0, 0.0, 0.0, 0, 0, 0, 0)
        fleet.members["a-w0"].writer.write(encode(report) * 2)
        await asyncio.wait_for(controller.finished.wait(), PATIENCE_S)
        assert "twice" in controller.failure


async def test_a_member_that_waits_for_the_others_is_told_why_it_ends(tmp_path: Path) -> None:
    async with running(spec_of(VIEW), tmp_path) as controller:
        member = await connect(tmp_path / "s", "a-w0")
        await happens(lambda: controller.status()["joined"] == ["a-w0"])
        assert controller.state == "waiting"
        controller.fail("b-w0 did not join")
        await asyncio.wait_for(controller.finished.wait(), PATIENCE_S)
        await controller.close()
        await asyncio.wait_for(member.listen(), PATIENCE_S)
        assert member.stopped == controller.failure == "b-w0 did not join"
        member.writer.close()


@pytest.mark.parametrize(("joined", "state", "failure"), [(1, "waiting", ""), (5, "failed", STOPPED)])
async def test_a_controller_that_is_stopped_fails_a_training_that_has_begun_and_no_other(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, joined: int, state: str, failure: str
) -> None:
    caplog.set_level(logging.INFO, "testbed.controller.service")
    async with running(spec_of(VIEW), tmp_path) as controller:
        members = [await connect(tmp_path / "s", name) for name in VIEW.names[:joined]]
        await happens(lambda: len(controller.hellos) == joined)
        await controller.close()
        for member in members:
            await asyncio.wait_for(member.listen(), PATIENCE_S)
            assert member.stopped == STOPPED
            member.writer.close()
        assert (controller.state, controller.failure) == (state, failure)
        with pytest.raises(JoinRefused, match=re.escape(f"over ({STOPPED})")):
            controller.joined(Hello(VIEW.names[-1], ("10.0.0.1", 4000)))
    final = json.loads((tmp_path / "out/final.json").read_text())
    assert (final["state"], final["failure"]) == (state, failure)
    ends = [record for record in caplog.records if STOPPED in record.getMessage()]
    assert [record.levelname for record in ends] == ["ERROR" if failure else "INFO"]


async def test_a_report_that_was_under_way_as_a_training_ended_is_ignored(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with training(spec_of(VIEW), tmp_path, VIEW) as (controller, _):
        controller.fail("enough")
        await controller.close(keep_server=True)
        controller.received(Report("a-w0", 0, 0, 0.0, 1.0, 0.0, 0.0, 0, 0, 0, 0))
    assert all(record.exc_info is None for record in caplog.records)


async def test_a_diverged_loss_is_recorded_and_does_no_harm(tmp_path: Path) -> None:
    view = view_of(sites(("a", "b", 10)), {})
    async with training(spec_of(view), tmp_path, view) as (controller, fleet):
        for name, member in fleet.members.items():
            member.send(Report(name, 0, 0, 0.0, 1.0, 0.0, 0.0, 0, 0, 0, 0, metrics={"loss": float("nan")}))
        await happens(lambda: group_of(controller).rounds.complete)
        assert controller.state == "running"
    recorded = [record["metrics"] for record in read_records(tmp_path / "out/rounds.jsonl")]
    assert recorded == [{"loss": None}] * len(view.names)


async def test_a_disk_that_takes_no_more_ends_the_run_and_no_member_is_blamed(tmp_path: Path) -> None:
    async with training(spec_of(VIEW), tmp_path, VIEW) as (controller, fleet):
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))
        try:
            await fleet.one_round()
            await asyncio.wait_for(controller.finished.wait(), PATIENCE_S)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert controller.state == "failed"
        assert "`ulimit -f`" in controller.failure


async def test_a_disk_that_takes_no_more_when_a_plan_is_judged_is_no_mistake_of_ours(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with training(spec_of(VIEW), tmp_path, VIEW) as (controller, _):
        shutil.rmtree(tmp_path / "out" / "views")
        (tmp_path / "out" / "views").touch()
        controller.do(ForcePolicy(policy="star"))
        await asyncio.wait_for(controller.finished.wait(), PATIENCE_S)
        assert controller.failure.startswith("the run can't be recorded: ")
    assert all(record.exc_info is None for record in caplog.records)
