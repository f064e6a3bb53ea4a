"""Plans: what makes one valid, and the cut of the elements over its trees."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.plan import MOST_CODED_BYTES, Group, Plan, PlanError, Route, TrainingChoice, Tree, codec_bytes, cut
from tests.sync.plans import chain, names, random_groups, random_plan, random_routes, star

pytestmark = pytest.mark.pure

ABC = ("a", "b", "c")


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    """Draw a plan over 1 to 9 members, sometimes with groups, keys and auxiliary routes."""
    chosen = random.Random(draw(st.integers(0, 2**32)))
    plan = random_plan(chosen, names(draw(st.integers(1, 9))), epoch=3)
    plan = replace(plan, auxiliary=random_routes(chosen, plan.members))
    return random_groups(chosen, plan) if draw(st.booleans()) else plan


@given(plans(), st.integers(0, 10_000))
def test_slices_cover_every_element_once(plan: Plan, elements: int) -> None:
    slices = plan.whole.slices(elements)
    assert [s.tree for s in slices] == list(range(len(plan.trees)))
    assert slices[0].start == 0 and slices[-1].stop == elements
    assert all(a.stop == b.start for a, b in pairwise(slices))
    assert all(abs((s.stop - s.start) - plan.trees[s.tree].share * elements) <= 1.0 + 1e-5 for s in slices)


@given(plans())
def test_json_brings_back_the_same_plan(plan: Plan) -> None:
    assert Plan.from_json(json.loads(plan.dumps())) == plan


@given(plans())
def test_edges_are_one_way_up_and_one_way_down_per_member_and_tree(plan: Plan) -> None:
    edges = list(plan.edges())
    assert len(edges) == 2 * (len(plan.members) - 1) * len(plan.trees)
    for group in plan.groups:
        edges += group.edges()
    for member in plan.members:
        assert plan.next_hops(member) == {target for source, target, _ in edges if source == member}


@pytest.mark.parametrize(
    ("trees", "rule"),
    [
        ((), (None, "trees")),
        ((Tree("x", {}, {}),), ("unknown-member", "root")),
        ((Tree("a", {"b": "a"}, {"b": "a", "c": "a"}),), ("span", "reduce")),
        ((Tree("a", {"b": "a", "c": "a"}, {"b": "a", "c": "a", "d": "a"}),), ("span", "broadcast")),
        ((Tree("a", {"b": "c", "c": "b"}, {"b": "a", "c": "a"}),), ("cycle", "reduce")),
        ((Tree("a", {"b": "a", "c": "a"}, {"b": "d", "c": "a"}),), ("no-way-to-root", "broadcast")),
        ((star(ABC, "a"), Tree("b", {"a": "b", "c": "b"}, {"a": "b", "c": "b"}, 0.0)), (None, "share")),
        ((Tree("a", {"b": "a", "c": "a"}, {"b": "a", "c": "a"}, 0.5),), (None, "share")),
    ],
)
def test_plans_that_would_lose_or_double_are_refused(trees: tuple[Tree, ...], rule: tuple[str | None, str]) -> None:
    with pytest.raises(PlanError) as caught:
        Plan(0, ABC, trees)
    assert (caught.value.rule, caught.value.field) == rule


def test_steps_are_members_and_travel_along() -> None:
    plan = Plan(0, ABC, (star(ABC, "a"),), steps={"a": 8, "b": 1})
    assert Plan.from_json(json.loads(plan.dumps())) == plan
    for steps in ({"d": 1}, {"a": 0}):
        with pytest.raises(PlanError) as caught:
            replace(plan, steps=steps)
        assert caught.value.field == "steps"


def test_how_members_train_travels_along_and_older_plans_say_nothing_of_it() -> None:
    plan = Plan(0, ABC, (star(ABC, "a"),), codec="int8", training=TrainingChoice("diloco", {"every": 16}))
    assert Plan.from_json(json.loads(plan.dumps())) == plan
    assert plan.training is not None and plan.training.local_steps == 16
    assert plan.shape() != replace(plan, training=None).shape()
    without = Plan(0, ABC, (star(ABC, "a"),)).to_json()
    assert "training" not in without
    assert Plan.from_json(without).training is None
    with pytest.raises(PlanError) as caught:
        Plan.from_json({**without, "training": {"scheme": "diloco"}})
    assert (caught.value.rule, caught.value.field) == ("not-a-plan", "options")


@pytest.mark.parametrize(
    ("codec", "size"), [("fp32", 4.0), ("int8", 1 + 4 / 256), ("topk:0.01", 0.06), ("topk:0.9", 4.0)]
)
def test_codecs_say_their_bytes(codec: str, size: float) -> None:
    assert codec_bytes(codec) == pytest.approx(size)


@pytest.mark.parametrize(
    ("codec", "chunk_bytes", "links", "size"),
    [
        ("fp32", 1032, {}, 1032),
        ("bf16", 1 << 16, {}, 1 << 17),
        ("int8", 1 << 14, {}, 3 << 14),
        ("sparse", 1 << 14, {}, 40 << 14),
        ("sparse", 1 << 18, {}, MOST_CODED_BYTES),
        ("topk:0.01", 1 << 14, {}, 1 << 18),
        ("topk:0.01", 1 << 18, {}, 1 << 18),
        ("bins2", 1 << 14, {"a->b": "int8"}, 3 << 14),
        ("bins2", 1 << 14, {"a->b": "fp32"}, 1 << 14),
        ("bf16", 1024, {}, 1024),
        ("sparse", 1 << 21, {}, 1 << 21),
    ],
)
def test_a_chunk_holds_the_values_that_codecs_send_in_its_bytes(
    codec: str, chunk_bytes: int, links: dict[str, str], size: int
) -> None:
    """A chunk has whole blocks, and at least its bytes; on no link it is sent in more. Unused links do not count."""
    trees = (Tree("c", {"a": "b", "b": "c"}, {"a": "b", "b": "c"}),)
    made = Plan(0, ABC, trees, chunk_bytes, codec=codec, link_codecs={"a->c": "fp32", **links})
    assert made.values_bytes() == size


def test_an_unknown_codec_says_which_there_are() -> None:
    with pytest.raises(PlanError) as caught:
        codec_bytes("fp8")
    assert (caught.value.field, caught.value.given) == ("codec", "fp8")


def test_members_epochs_and_chunks_are_checked() -> None:
    tree = star(ABC, "a")
    with pytest.raises(PlanError) as caught:
        Plan(-1, ABC, (tree,))
    assert caught.value.field == "epoch"
    with pytest.raises(PlanError) as caught:
        Plan(0, ("a", "b", "c", "c"), (tree,))
    assert caught.value.field == "members"
    with pytest.raises(PlanError) as caught:
        Plan(0, ABC, (tree,), chunk_bytes=1028)
    assert caught.value.field == "chunk_bytes"


@pytest.mark.parametrize("value", [{}, {"version": 3}, {"version": 3, "epoch": 0}, {"version": 3, "trees": 3}, []])
def test_what_is_no_plan_is_refused(value: Any) -> None:
    with pytest.raises(PlanError):
        Plan.from_json(value)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("epoch", "x"),
        ("members", 3),
        ("chunk_bytes", None),
        ("trees", [1]),
        ("auxiliary", [["a"]]),
        ("auxiliary", 5),
        ("groups", [{}]),
        ("period", None),
        ("link_codecs", [1]),
    ],
)
def test_a_plan_with_a_wrong_field_is_refused(field: str, value: object) -> None:
    whole = Plan(1, ABC, (chain(ABC),)).to_json()
    with pytest.raises(PlanError) as caught:
        Plan.from_json({**whole, field: value})
    assert caught.value.rule == "not-a-plan"


def test_a_plans_shape_leaves_out_its_epoch() -> None:
    plan = Plan(1, ABC, (chain(ABC),))
    assert plan.shape() == plan.with_epoch(2).shape() != Plan(1, ABC, (star(ABC, "a"),)).shape()
    assert plan.with_epoch(2).epoch == 2


def test_a_plan_of_another_version_is_refused_with_what_to_do() -> None:
    for version in (0, 4, "3", None):
        other = {**Plan(1, ABC, (chain(ABC),)).to_json(), "version": version}
        with pytest.raises(PlanError) as caught:
            Plan.from_json(other)
        assert (caught.value.field, caught.value.given) == ("version", version)
        assert "`testbed plan`" in str(caught.value)


@pytest.mark.parametrize("kind", [numpy.float64, numpy.float32])
def test_a_policy_may_compute_its_plan_by_numpy(kind: type[numpy.floating[Any]]) -> None:
    rates = numpy.array([30.0, 10.0, 20.0], kind)
    shares = rates / rates.sum()
    keys = tuple(numpy.array([0.25, 0.75], kind))
    trees = tuple(replace(chain(ABC), share=share, keys=keys) for share in shares)
    size, count = numpy.array([8192, 3])
    plan = Plan(1, ABC, trees, size, steps={"a": count})
    assert Plan.from_json(json.loads(plan.dumps())) == plan


def test_a_plan_of_version_1_without_codecs_is_read() -> None:
    plan = Plan(1, ABC, (chain(ABC),))
    kept = ("epoch", "policy", "members", "chunk_bytes")
    trees = [{name: part for name, part in tree.to_json().items() if name != "keys"} for tree in plan.trees]
    first = {name: value for name, value in plan.to_json().items() if name in kept} | {"version": 1, "trees": trees}
    assert Plan.from_json(first) == Plan.from_json({**first, "codec": "fp32", "link_codecs": {}}) == plan
    assert Plan.from_json({**first, "codec": "int8"}).codec == "int8"


@given(plans(), st.integers(1, 40))
def test_every_round_is_over_trees_of_its_own_members(plan: Plan, number: int) -> None:
    parties = plan.groups_in(number)
    assert sorted(member for party in parties for member in party.members) == sorted(plan.members)
    whole = [party.members for party in parties] == [plan.members]
    assert plan.among_all(number) == (whole and number % plan.period == 0)
    for party in parties:
        assert all({source, target} <= set(party.members) for source, target, _ in party.edges())


@pytest.mark.parametrize("shares", [(0.9999, 0.000101, 0.0), (0.9999, 0.000099, 0.0), (0.0, 1.0)])
def test_a_slice_ends_where_the_tensor_ends(shares: tuple[float, ...]) -> None:
    bounds = cut(shares, 0, 10_000_000)
    assert bounds == sorted(bounds) and (bounds[0], bounds[-1]) == (0, 10_000_000)


@pytest.mark.parametrize("keys", [(0.5, 0.4), (1.5, -0.5), (0.0, 1.0)])
def test_keys_must_share_the_slice(keys: tuple[float, ...]) -> None:
    with pytest.raises(PlanError) as caught:
        Plan(0, ABC, (replace(star(ABC, "a"), keys=keys),))
    assert (caught.value.field, caught.value.given) == ("keys", keys)


@pytest.mark.parametrize(
    ("routes", "rule"),
    [
        ((Route("a", "b", ()),), "no-inner-member"),
        ((Route("a", "b", ("x",)),), "unknown-member"),
        ((Route("a", "b", ("a",)),), "member-twice"),
        ((Route("a", "b", ("c", "c")),), "member-twice"),
        ((Route("a", "b", ("c",)), Route("a", "b", ("c",))), "shared-inner-member"),
    ],
)
def test_auxiliary_routes_lead_over_other_members_each_once(routes: tuple[Route, ...], rule: str) -> None:
    with pytest.raises(PlanError) as caught:
        Plan(0, ABC, (star(ABC, "a"),), auxiliary=routes)
    assert (caught.value.rule, caught.value.field) == (rule, "auxiliary")


def test_routes_of_a_pair_that_meet_are_found_among_others() -> None:
    """32 members with four routes a pair; the last route passes where the first one does."""
    members = tuple(f"m{i}" for i in range(32))
    vias = {(a, b): [m for m in members if m not in (a, b)][:4] for a in members for b in members if a != b}
    routes = tuple(Route(a, b, (via,)) for (a, b), its in vias.items() for via in its)
    assert Plan(0, members, (star(members, members[0]),), auxiliary=routes).auxiliary == routes
    with pytest.raises(PlanError, match="m0->m2->m1 and m0->m9->m2->m1"):
        Plan(0, members, (star(members, members[0]),), auxiliary=(*routes, Route("m0", "m1", ("m9", "m2"))))


def test_two_pairs_may_use_the_same_inner_member() -> None:
    routes = (Route("a", "b", ("c",)), Route("b", "a", ("c",)))
    assert Plan(0, ABC, (star(ABC, "a"),), auxiliary=routes).auxiliary == routes


A, BC = Group(("a",), (star(("a",), "a"),)), Group(("b", "c"), (star(("b", "c"), "b"),))


@pytest.mark.parametrize(
    ("groups", "period", "field"),
    [
        ((A, BC), 1, "period"),
        ((), 4, "period"),
        ((A, BC), 0, "period"),
        ((A,), 2, "groups"),
        ((A, A, BC), 2, "groups"),
        ((A, Group(("b", "x"), (star(("b", "x"), "b"),))), 2, "groups"),
        ((A, Group(("b", "c"), (star(ABC, "b"),))), 2, "reduce"),
        ((A, Group(("b", "c"), ())), 2, "trees"),
    ],
)
def test_groups_part_the_members_and_their_trees_span_them(groups: tuple[Group, ...], period: int, field: str) -> None:
    with pytest.raises(PlanError) as caught:
        Plan(0, ABC, (star(ABC, "a"),), groups=groups, period=period)
    assert caught.value.field == field
