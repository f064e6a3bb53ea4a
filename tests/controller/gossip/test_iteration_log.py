"""Decentralized training as the controller follows it."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from testbed.controller.gossip.iteration_log import REORDERED_S, IterationLog
from testbed.controller.model.spec import GossipGraph
from testbed.planning.gaps import Violation
from testbed.planning.graphs import GraphError, ring
from testbed.protocol import Goodbye, Report, Welcome
from tests.controller.fleet import connect
from tests.controller.runs import mesh, running, spec_of
from tests.waiting import PATIENCE_S

MEMBERS = tuple("abcd")


def entered(member: str, iteration: int, at_s: float, **metrics: float) -> tuple[Report, float]:
    """A report, and when its iteration was entered."""
    report = Report(member, iteration, 0, at_s - 0.5, at_s, 0.1, 0.0, 10, 10, 0, 0, metrics=metrics)
    return report, at_s


def graph(members: tuple[str, ...]) -> GossipGraph:
    return GossipGraph(edges=tuple(sorted(ring(members).edges)), survives=True)


def book() -> IterationLog:
    return IterationLog(MEMBERS, graph(MEMBERS))


@pytest.mark.pure
def test_reports_that_are_read_in_another_order_break_no_bound() -> None:
    """a goes two ahead of b only for who looks at reports as they come: b's is older than a's second one."""
    iterations = book()
    assert not iterations.add(*entered("a", 1, 10.0))
    assert not iterations.add(*entered("a", 2, 10.4))
    assert not iterations.add(*entered("b", 1, 10.2))
    assert not iterations.add(*entered("d", 1, 10.3))
    assert not iterations.add(*entered("c", 1, 10.1))
    assert iterations.judge(float("inf")) == []
    assert iterations.lowest == 1 and iterations.to_json()["widest"] == 1


@pytest.mark.pure
def test_a_broken_bound_is_known_when_nothing_older_can_come() -> None:
    iterations = book()
    assert not iterations.add(*entered("a", 1, 10.0))
    assert not iterations.add(*entered("a", 2, 10.1))
    (breach, *_) = iterations.add(*entered("a", 3, 10.1 + REORDERED_S))
    assert breach == Violation("a", "b", 2, 1)
    assert iterations.to_json()["violations"]


@pytest.mark.pure
def test_a_death_breaks_no_bound_whose_reports_are_still_to_be_read() -> None:
    """b's were written before a's, and are read after the word of c's death."""
    iterations = book()
    for member in MEMBERS:
        assert not iterations.add(*entered(member, 1, 10.0))
    assert not iterations.add(*entered("a", 2, 10.2))
    assert not iterations.add(*entered("a", 3, 10.4))
    assert not iterations.remove("c", "killed")
    for iteration, at_s in ((2, 10.1), (3, 10.3)):
        for member in "bd":
            assert not iterations.add(*entered(member, iteration, at_s))
    assert iterations.judge(float("inf")) == []


@pytest.mark.pure
def test_metrics_are_means_of_the_newest() -> None:
    iterations = book()
    assert iterations.lowest is None
    for iteration in (1, 2):
        for member, loss in zip(MEMBERS, (1.0, 2.0, 3.0, 6.0), strict=True):
            iterations.add(*entered(member, iteration, 10.0 + iteration, loss=loss * iteration))
    assert iterations.metrics() == {"loss": 6.0} and iterations.lowest == 2
    with pytest.raises(ValueError) as caught:
        iterations.add(*entered("a", 2, 14.0))
    assert (caught.value.rule, caught.value.member, caught.value.round) == ("order", "a", 2)


async def whole(reports: list[tuple[Report, float]], tmp_path: Path, dying: tuple[str, ...] = ()) -> dict[str, object]:
    """Return the outcome that the controller writes at the end of a run with these reports."""
    view = mesh()
    spec = spec_of(view, planning=None, graph=graph(view.names))
    async with running(spec, tmp_path) as controller:
        members = {name: await connect(tmp_path / "s", name) for name in view.names}
        for member in members.values():
            assert isinstance(await member.read(), Welcome)  # a death before all are there ends the run
        for report, _ in reports:
            members[report.member].send(report)
        for name in dying:
            members[name].writer.close()
        for name, member in members.items():
            if name not in dying:
                member.send(Goodbye(name, 3, metrics={"accuracy": 0.9}))
        async with asyncio.timeout(PATIENCE_S):
            await controller.finished.wait()
        for member in members.values():
            member.writer.close()
    return dict(json.loads((tmp_path / "out" / "final.json").read_text()))


@pytest.mark.local
async def test_a_run_within_its_bounds_is_done(tmp_path: Path) -> None:
    names = mesh().names
    final = await whole([entered(name, k, 10.0 + k / 10) for name in names for k in (1, 2, 3)], tmp_path)
    assert final["state"] == "done" and final["rounds"] == 3
    assert isinstance(final["gaps"], dict) and final["gaps"]["widest"] == 1 and final["gaps"]["violations"] == []


@pytest.mark.local
async def test_a_run_that_breaks_a_bound_has_failed(tmp_path: Path) -> None:
    names = mesh().names
    reports = [entered(name, k, 10.0 + k / 10) for name in names for k in (1, 2, 3) if name != names[2] or k == 1]
    reports[-1:] = [entered(names[-1], 3, 13.0)]
    final = await whole(reports, tmp_path)
    assert final["state"] == "failed"
    assert names[2] in str(final["failure"])


@pytest.mark.local
async def test_a_bound_that_turns_out_broken_only_when_all_have_left_fails_the_run_too(tmp_path: Path) -> None:
    names = mesh().names
    reports = [entered(name, k, 10.0 + k / 10) for name in names for k in (1, 2, 3) if name != names[2] or k == 1]
    final = await whole(reports, tmp_path)
    assert final["state"] == "failed" and names[2] in str(final["failure"])


@pytest.mark.pure
def test_a_member_that_dies_is_followed_no_more_and_the_others_have_longer_ways() -> None:
    iterations = book()
    for member in MEMBERS:
        iterations.add(*entered(member, 1, 10.0))
    assert not iterations.remove("b", "killed")
    # a is two hops from c over d, where it was over b as well, and three from nobody: b is gone.
    for number in (2, 3):
        assert not iterations.add(*entered("a", number, 10.1 * number))
    assert iterations.judge(float("inf")) != []
    assert iterations.lowest == 1 and iterations.members == ("a", "c", "d")
    assert iterations.to_json()["deaths"] == [{"member": "b", "iteration": 1, "why": "killed"}]
    with pytest.raises(GraphError) as caught:
        iterations.remove("d", "killed")
    assert caught.value.rule == "not-connected"


@pytest.mark.local
async def test_the_others_finish_when_one_dies(tmp_path: Path) -> None:
    names = mesh().names
    final = await whole([entered(name, 1, 10.0) for name in names], tmp_path, dying=(names[1],))
    assert final["state"] == "done"
    assert isinstance(final["gaps"], dict)
    assert [death["member"] for death in final["gaps"]["deaths"]] == [names[1]]


@pytest.mark.local
async def test_a_run_whose_graph_falls_apart_says_why_it_cannot_go_on(tmp_path: Path) -> None:
    names = mesh().names
    final = await whole([entered(name, 1, 10.0) for name in names], tmp_path, dying=(names[1], names[3]))
    assert final["state"] == "failed"
    assert names[1] in str(final["failure"]) or names[3] in str(final["failure"])


@pytest.mark.pure
def test_a_report_is_judged_by_the_graphs_that_some_member_is_still_under() -> None:
    iterations = book()
    for number in range(1, 50):
        for member in MEMBERS:
            assert not iterations.add(*entered(member, number, 10.0 + 2 * number))
        iterations.change_graph(number + 1, graph(MEMBERS))
    assert iterations.judge(float("inf")) == []
    assert len(iterations._periods) - iterations._over == 2, "all are in iteration 49, before the newest graph"
    for number in (50, 51, 52):
        iterations.add(*entered("a", number, 60.0 + number))
    assert iterations.judge(float("inf")) != []


@pytest.mark.pure
def test_nobody_waits_under_an_old_graph_for_a_member_that_died_and_came_again() -> None:
    iterations = book()
    for member in MEMBERS:
        assert not iterations.add(*entered(member, 1, 10.0))
    assert not iterations.remove("b", "killed")
    iterations.change_graph(2, graph(MEMBERS), joins="b")
    for member in MEMBERS:
        assert not iterations.add(*entered(member, 3, 12.0))
    assert iterations.judge(float("inf")) == [] and iterations._over == 1
