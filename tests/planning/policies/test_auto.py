from __future__ import annotations

import json
from dataclasses import dataclass, replace
from itertools import combinations

import pytest
from hypothesis import given, settings

from testbed.plan import Plan
from testbed.planning import Policy, PolicyError, View, make_policy, policy_names, predict
from testbed.planning.policies.auto import PROPOSED, ROUNDS, SCREEN, TRIED
from testbed.planning.policies.star import star
from testbed.planning.policy import REGISTRY
from testbed.planning.simulate import tried_s
from testbed.planning.tree_choice import FEWER
from tests.planning.networks import sites, view_of, views

pytestmark = pytest.mark.pure

AUTO = make_policy("auto")
OTHERS = tuple(name for name in policy_names() if name not in ("auto", "cpn"))

#: What the screen keeps out was predicted to take SCREEN times as long. Of 500 such views two had a quicker plan among
#: it, by 3 and by 9 %, both for models of 1,000 bytes.
SCREENED_OUT = 0.2

#: From a to c it is nearer than by way of b, and slower.
DETOUR = view_of(sites(("a", "b", 50), ("b", "c", 50), ("a", "c", 40), delay=0.05), {}, model_bytes=2_000_000)


def round_s(plan: Plan, view: View) -> float:
    return tried_s(plan, view, ROUNDS)


@pytest.mark.long
@settings(max_examples=25, derandomize=True)
@given(views())
def test_no_policy_s_plan_is_quicker(view: View) -> None:
    mine = round_s(AUTO.plan(view), view)
    plans = sorted((make_policy(name).plan(view) for name in OTHERS), key=lambda plan: predict(plan, view).seconds)
    seconds = [round_s(plan, view) for plan in plans]
    assert mine <= min(seconds) * (1 + SCREENED_OUT)
    worst_s = predict(plans[0], view).seconds * SCREEN
    tried = [its for its, plan in zip(seconds, plans, strict=True) if predict(plan, view).seconds <= worst_s]
    assert mine <= min(tried[:TRIED]) * (1 + FEWER)


@settings(max_examples=25)
@given(views())
def test_what_it_proposes_is_distinct_and_the_best_first(view: View) -> None:
    last = make_policy("star").plan(view)
    plans = AUTO.proposals(view, last)
    assert 1 <= len(plans) <= PROPOSED
    assert plans[0] == AUTO.replan(view, last)
    assert all(one.shape() != other.shape() for one, other in combinations(plans, 2))
    seconds = [round_s(plan, view) for plan in plans]
    assert all(one <= other * (1 + FEWER) for one, other in combinations(seconds, 2))


def test_other_policies_propose_what_they_plan_again() -> None:
    last = make_policy("star").plan(DETOUR)
    assert make_policy("mst").proposals(DETOUR, last) == [make_policy("mst").plan(DETOUR)]


def test_the_plan_has_the_name_of_the_policy_that_made_it() -> None:
    plan = AUTO.plan(DETOUR)
    assert plan.policy in OTHERS
    assert plan == make_policy(plan.policy).plan(DETOUR)


def test_of_nearly_equal_plans_the_one_with_the_fewest_trees_is_taken() -> None:
    """Between two members a ring's two trees are no quicker than a star's one."""
    view = view_of(sites(("a", "b", 50)), {}, model_bytes=100_000_000)
    assert len(AUTO.plan(view).trees) == 1
    assert len(make_policy("ring").plan(view).trees) == 2


def test_the_policy_changes_with_the_network() -> None:
    """Packing's four trees share the load of the links; where delays are most of a round, one shallow tree is as good,
    and NetStorm's cost half as much again."""
    graph = sites(("a", "b", 50), ("b", "c", 50), ("c", "d", 50), ("d", "a", 50), ("a", "c", 50), delay=0.0)
    near = view_of(graph, {}, model_bytes=2_000_000)
    slow = {name: link if "-w" in name else replace(link, delay_s=0.2) for name, link in near.links.items()}
    far = View.of_network(near.members, slow, near.routes, near.model_bytes)
    plans = [AUTO.plan(near), AUTO.replan(far, AUTO.plan(near))]
    assert [len(plan.trees) for plan in plans] == [4, 1]
    assert plans[0].policy != plans[1].policy
    assert round_s(make_policy("netstorm").plan(far), far) > 1.5 * round_s(plans[1], far)


def test_a_policy_without_a_plan_is_left_out() -> None:
    """Without the edges between a and d there is no star, and a ring in the order of the members does not close."""
    view = view_of(sites(("a", "b", 50), ("b", "c", 50), ("c", "d", 50)), {})
    next_to = {"ab", "ba", "bc", "cb", "cd", "dc"}
    chain = replace(view, edges={pair: edge for pair, edge in view.edges.items() if pair[0][0] + pair[1][0] in next_to})
    with pytest.raises(PolicyError):
        make_policy("star").plan(chain)
    assert predict(AUTO.plan(chain), chain).seconds < float("inf")
    assert set(AUTO.explain(chain, AUTO.plan(chain))["round_s"]) < set(OTHERS)


def test_where_no_policy_has_a_plan_each_one_s_reason_is_told() -> None:
    with pytest.raises(PolicyError, match=r"mst: .*star: ") as raised:
        AUTO.plan(replace(DETOUR, edges={}))
    assert "cpn" not in str(raised.value)


def test_a_policy_with_a_measure_of_its_own_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    @dataclass(frozen=True)
    class Odd(Policy):
        name = "odd"
        measure = staticmethod(lambda view, plan: 0.0)  # type: ignore[assignment]

        def plan(self, view: View) -> Plan:
            asked.append(view)
            return make_policy("star").plan(view)

    monkeypatch.setitem(REGISTRY, "odd", Odd)
    make_policy("auto", {"also": ("odd",)}).plan(DETOUR)
    assert not asked


@pytest.mark.parametrize("unfit", ["members", "edges"])
def test_a_plug_in_s_plan_that_does_not_fit_the_view_is_left_out(unfit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A round of two members of three is the shortest; the star around a uses an edge to c, which the view lacks."""
    edges = {pair: edge for pair, edge in DETOUR.edges.items() if set(pair) != {"a-w0", "c-w0"}}
    view = replace(DETOUR, edges=edges)

    @dataclass(frozen=True)
    class Unfit(Policy):
        name = "unfit"

        def plan(self, view: View) -> Plan:
            names = view.names[:2] if unfit == "members" else view.names
            return Plan(0, names, (star(names, "a-w0"),), policy=self.name)

    monkeypatch.setitem(REGISTRY, "unfit", Unfit)
    auto = make_policy("auto", {"also": ("unfit",)})
    plan = auto.plan(view)
    assert plan.members == view.names
    assert "unfit" not in auto.explain(view, plan)["round_s"]


def test_it_says_what_each_policy_s_round_takes() -> None:
    plan = AUTO.plan(DETOUR)
    seconds = AUTO.explain(DETOUR, plan)["round_s"]
    assert sorted(seconds) == sorted(OTHERS)
    assert list(seconds.values()) == sorted(seconds.values())
    assert seconds[plan.policy] <= min(seconds.values()) * (1 + FEWER)
    json.dumps(seconds)
