"""From an experiment's graph and rules to what each worker and the controller are told."""

from __future__ import annotations

from dataclasses import asdict, replace
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest
import torch

from testbed.controller.model.spec import GossipGraph
from testbed.emulation.network.routing import Routes
from testbed.plan import Plan, Tree
from testbed.planning.view import Member
from testbed.protocol import NodeConfiguration
from testbed.run.assignments import assignment_of, check_policy, graph_of, policy_options, site_period
from testbed.run.jobs import Jobs
from testbed.schemes.adpsgd import ActiveMember, PassiveMember
from testbed.schemes.assignment import GossipAssignment, steps_of
from testbed.schemes.hop.member import HopMember
from testbed.schemes.hop.reception import HopRules
from testbed.schemes.hop.sites import SiteLeader
from testbed.schemes.staggered.member import StaggeredMember
from testbed.spec.errors import SpecError
from testbed.spec.experiment import Experiment
from tests.schemes.participants import participant
from tests.spec.files import EXPERIMENT, TOPOLOGY, spoilt, write

pytestmark = pytest.mark.pure


def loaded(folder: Path, sync: dict[str, Any], topology: Any = TOPOLOGY, **more: Any) -> Experiment:
    return Experiment.load(write(folder, topology, EXPERIMENT | {"sync": sync} | more))


def assigned(folder: Path, sync: dict[str, Any], topology: Any = TOPOLOGY) -> tuple[GossipAssignment, GossipGraph]:
    experiment = loaded(folder, sync, topology)
    assignment = assignment_of(experiment)
    assert isinstance(assignment, GossipAssignment)
    return assignment, graph_of(experiment, assignment)


@pytest.mark.parametrize(
    "sync",
    [
        {"strategy": "hop", "backup": 1, "max_ig": 4, "skip": {"jump": 10, "rule": 0.75}, "form": "parallel"},
        {"strategy": "hop", "mode": "notify_ack", "graph": "complete"},
        {"strategy": "dpsgd", "graph": "network"},
        {"strategy": "sgp", "graph": "exponential"},
        {"strategy": "adpsgd"},
        {"strategy": "netmax", "graph": "complete"},
        {"strategy": "prague"},
        {"strategy": "fedasync", "every": 4},
        {"strategy": "halos", "accumulate": 3, "codec": "fp16"},
        {"strategy": "decoupled_diloco", "codec": "bf16"},
        {"strategy": "staggered", "policy": "cpn", "options": {"spatial": "sharded"}},
    ],
)
def test_every_place_makes_a_party(sync: dict[str, Any], tmp_path: Path) -> None:
    assignment, graph = assigned(tmp_path, sync)
    members, scheme = assignment.graph.members, sync["strategy"]
    own = Experiment.load(tmp_path / "experiment.yaml").spec.sync.own
    for member in members:
        place = NodeConfiguration.from_json(assignment.of(member))
        built = participant(scheme, member, members, place, torch.zeros(3), 5, **asdict(own))
        assert built.name == member
        assert set(place.partners) <= set(members) - {member}
    bounds = graph.bounds(members)
    assert (max(bounds.values()) < float("inf")) == (sync["strategy"] in ("hop", "dpsgd", "sgp"))


def test_between_sites_the_first_worker_of_each_stands_for_it(tmp_path: Path) -> None:
    assignment, graph = assigned(tmp_path, {"strategy": "hop", "between": "sites", "max_ig": 3, "backup": 1})
    names = [worker.name for worker in Experiment.load(tmp_path / "experiment.yaml").topology.workers]
    parties = {}
    for name in names:
        place = NodeConfiguration.from_json(assignment.of(name))
        parties[name] = participant("hop", name, names, place, torch.zeros(3), 5)
    leaders = {name for name, party in parties.items() if isinstance(party, SiteLeader)}
    assert leaders == {name for name in names if name.endswith("-w0")} == set(graph.leaders)
    bounds = graph.bounds(tuple(names))
    assert {pair for pair, bound in bounds.items() if bound < float("inf")} == set(permutations(leaders, 2))


def test_rules_come_through(tmp_path: Path) -> None:
    sync = {"strategy": "hop", "backup": 1, "max_ig": 4, "skip": {"jump": 10, "rule": 0.75}, "form": "parallel"}
    place = assigned(tmp_path, sync)[0].node("paris-w0")
    assert HopRules(**place.rules) == HopRules(max_ig=4, backup=1, max_jump=10, quantile=0.75, parallel=True)


def test_d_psgd_is_hops_standard_mode_with_metropolis_weights(tmp_path: Path) -> None:
    assignment, _ = assigned(tmp_path, {"strategy": "dpsgd"})
    place = assignment.node("paris-w0")
    party = participant("dpsgd", "paris-w0", assignment.graph.members, place, torch.zeros(3), 5)
    assert isinstance(party, HopMember) and HopRules(**place.rules) == HopRules()
    assert sum(place.weights.values()) == pytest.approx(1)


def test_ad_psgd_has_two_sides(tmp_path: Path) -> None:
    assignment, _ = assigned(tmp_path, {"strategy": "adpsgd"})
    members = assignment.graph.members
    kinds = [
        type(participant("adpsgd", member, members, assignment.node(member), torch.zeros(3), 5)) for member in members
    ]
    assert kinds == [ActiveMember, PassiveMember, ActiveMember, PassiveMember]


@pytest.mark.parametrize(
    ("sync", "field"),
    [
        ({"strategy": "adpsgd", "graph": "complete"}, "sync.graph"),
        ({"strategy": "dpsgd", "graph": "exponential"}, "sync.graph"),
        ({"strategy": "hop", "backup": 3, "max_ig": 4}, "sync.backup"),
        ({"strategy": "prague", "group": 5}, "sync.group"),
        ({"strategy": "decoupled_diloco", "quorum": 5}, "sync.quorum"),
    ],
)
def test_what_the_workers_do_not_make_is_refused(sync: dict[str, Any], field: str, tmp_path: Path) -> None:
    with pytest.raises(SpecError) as caught:
        assigned(tmp_path, sync)
    assert caught.value.fields == (field,)
    assert caught.value.faults[0].remedy


def test_staggered_groups_are_those_of_the_policy_and_one_member_evaluates(tmp_path: Path) -> None:
    sync = {"strategy": "staggered", "policy": "cpn", "every": 6, "staleness": 2}
    uneven = spoilt(TOPOLOGY, "sites", "tokyo", "speed", to=0.5)
    assignment, _ = assigned(tmp_path, sync, uneven)
    places = {name: assignment.node(name) for name in assignment.graph.members}
    teams = assignment.groups["teams"]
    assert [set(team["members"]) for team in teams] == [{"paris-w0", "paris-w1"}, {"tokyo-w0"}, {"dallas-w0"}]
    assert all(set(team["owners"]) <= set(team["members"]) for team in teams)
    steps = {name: place.steps for name, place in places.items()}
    assert steps == {"paris-w0": 6, "paris-w1": 6, "tokyo-w0": 3, "dallas-w0": 6}
    assert {name: place.evaluates for name, place in places.items() if place.evaluates} == {
        "paris-w0": (teams[0]["period"], teams[0]["phase"])
    }
    names, place, samples = assignment.graph.members, places["paris-w1"], [9.0, 3, 2, 2]
    party = participant("staggered", "paris-w1", names, place, torch.zeros(3), 5, samples)
    assert isinstance(party, StaggeredMember)
    rules = party._rules
    assert rules.staleness == 2 and rules.share("paris-w1") < rules.share("paris-w0")


def test_the_server_s_model_is_evaluated_by_one(tmp_path: Path) -> None:
    assignment, _ = assigned(tmp_path, {"strategy": "fedasync", "every": 4})
    places = [assignment.node(name) for name in assignment.graph.members]
    assert [place.evaluates for place in places] == [(1, 0), None, None, None]
    assert {place.steps for place in places} == {4}


def test_each_site_has_a_server_and_one_of_them_that_of_all(tmp_path: Path) -> None:
    uneven = spoilt(TOPOLOGY, "sites", "tokyo", "speed", to=0.5)
    assignment, _ = assigned(tmp_path, {"strategy": "halos"}, uneven)
    places = {name: assignment.node(name) for name in assignment.graph.members}
    servers = {name: place.rules["server"] for name, place in places.items()}
    assert servers == {"paris-w0": "paris-w0", "paris-w1": "paris-w0", "tokyo-w0": "tokyo-w0", "dallas-w0": "dallas-w0"}
    (centre,) = {place.rules["centre"] for place in places.values()}
    assert places["paris-w1"].partners == ("paris-w0",)
    assert set(places[centre].partners) >= set(servers.values()) - {centre}
    assert {name: place.steps for name, place in places.items()} == {**dict.fromkeys(places, 8), "tokyo-w0": 4}


def test_steps_follow_speed(tmp_path: Path) -> None:
    members = [Member(f"a-w{i}", "a", speed, "", "") for i, speed in enumerate((2.0, 1.0, 0.5, 0.1))]
    assert steps_of(members, 8) == (8, 4, 2, 1)
    uneven = spoilt(TOPOLOGY, "sites", "tokyo", "speed", to=0.5)
    assignment = assignment_of(loaded(tmp_path, {"strategy": "hybrid", "every": 4}, uneven))
    assert assignment.of("tokyo-w0") == {"every": 2, "steps": (4, 4, 2, 4)}
    assert assignment_of(loaded(tmp_path, {"strategy": "diloco"})).of("tokyo-w0") == {}


def test_a_straggler_counts_as_slow(tmp_path: Path) -> None:
    """Its own share of the steps, and the plans of a policy that goes by speed, follow from the factor on its steps."""
    compute = {"step_time": "100ms", "stragglers": {"tokyo-w0": 4}}
    experiment = loaded(tmp_path, {"strategy": "hybrid", "policy": "cpn", "every": 8}, compute=compute)
    assert assignment_of(experiment).of("tokyo-w0") == {"every": 2, "steps": (8, 8, 2, 8)}
    planning = Jobs(experiment).controller_spec(Routes.over(experiment.topology), 0.0).planning
    assert planning is not None
    assert {its.name: its.speed for its in planning.view.members if its.speed != 1.0} == {"tokyo-w0": 0.25}


def test_the_cpn_policy_knows_what_the_scheme_has_members_do(tmp_path: Path) -> None:
    def options(**sync: Any) -> dict[str, Any]:
        return policy_options(loaded(tmp_path, sync, compute={"step_time": "50ms"}).spec)

    known = {"every": 4, "temporal": False, "overlap": False, "step_s": 0.05, "spatial": "sharded"}
    assert options(strategy="hybrid", policy="cpn", every=4, options={"spatial": "sharded"}) == known
    assert options(strategy="hybrid", policy="cpn", overlap=True)["overlap"]
    assert options(strategy="hybrid", policy="cpn", options={"step_s": 1.0})["step_s"] == 1.0
    assert options(strategy="sparta", policy="cpn")["every"] == 1, "a round after each step"
    staggered = options(strategy="staggered", policy="cpn", options={"groups": "search"})
    assert staggered["temporal"] and staggered["groups"] == "search"
    assert options(strategy="staggered", policy="cpn")["groups"] == "sites"
    assert options(policy="ring", options={"order": "naive"}) == {"order": "naive"}


def test_the_scheme_or_its_policy_says_when_all_synchronize(tmp_path: Path) -> None:
    assert site_period(loaded(tmp_path, {"strategy": "hybrid", "policy": "star", "period": 3}).spec) == 3
    assert site_period(loaded(tmp_path, {"strategy": "hybrid", "policy": "cpn", "period": 3}).spec) == 1
    assert site_period(loaded(tmp_path, {"strategy": "diloco"}).spec) == 1


LEAVES = ("paris-w1", "tokyo-w0", "dallas-w0")
STAR = Tree("paris-w0", dict.fromkeys(LEAVES, "paris-w0"), dict.fromkeys(LEAVES, "paris-w0"))
WRITTEN = Plan(0, ("paris-w0", *LEAVES), (STAR,), codec="int8", link_codecs={"paris-w0->tokyo-w0": "fp16"})
PAIR = Tree("paris-w0", {"paris-w1": "paris-w0"}, {"paris-w1": "paris-w0"})
LINK_CODEC = "sync.options.document.link_codecs.paris-w0->tokyo-w0"


def with_plan(folder: Path, sync: dict[str, Any], plan: Plan = WRITTEN, **more: Any) -> Experiment:
    return loaded(folder, {**sync, "policy": "given", "options": {"document": plan.to_json()}}, **more)


@pytest.mark.parametrize(
    "sync",
    [
        {"codec": "int8"},
        {"codec": "int8", "link_codecs": {"paris->tokyo": "fp16", "tokyo->paris": "bf16"}},
    ],
)
def test_a_written_plan_has_the_codecs_of_its_experiment(sync: dict[str, Any], tmp_path: Path) -> None:
    check_policy(with_plan(tmp_path, sync))


@pytest.mark.parametrize(
    ("sync", "plan", "field"),
    [
        ({}, WRITTEN, "sync.options.document.codec"),
        ({"codec": "int8", "link_codecs": {"paris->tokyo": "bf16"}}, WRITTEN, LINK_CODEC),
        ({}, Plan(0, ("paris-w0", "paris-w1"), (PAIR,)), "sync.policy"),
        ({"strategy": "sparta"}, replace(WRITTEN, codec="fp32"), LINK_CODEC),
        ({"codec": "int8"}, replace(WRITTEN, groups=(WRITTEN.whole,), period=2), "sync.options.document.groups"),
    ],
)
def test_a_written_plan_that_does_not_fit_its_experiment_is_refused(
    sync: dict[str, Any], plan: Plan, field: str, tmp_path: Path
) -> None:
    with pytest.raises(SpecError) as caught:
        check_policy(with_plan(tmp_path, sync, plan))
    assert caught.value.fields == (field,)
    assert caught.value.faults[0].remedy


@pytest.mark.parametrize(
    "policy", [{"policy": "cpn", "options": {"groups": "sites"}}, {"policy": "hips", "options": {"period": 4}}]
)
def test_a_policy_that_makes_groups_is_refused_where_members_may_go(policy: dict[str, Any], tmp_path: Path) -> None:
    sync = {"strategy": "local_sgd", **policy}
    check_policy(loaded(tmp_path, sync))
    with pytest.raises(SpecError) as caught:
        check_policy(loaded(tmp_path, sync, elastic={"quorum": 2}))
    assert caught.value.fields == ("sync.policy",)
