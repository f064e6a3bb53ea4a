"""From an experiment's graph and rules to what each worker and the controller are told."""

from __future__ import annotations

from dataclasses import asdict
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest
import torch

from testbed.protocol import Place
from testbed.run.places import Placement
from testbed.spec.errors import SpecError
from testbed.spec.experiment import Experiment
from testbed.sync.decentralized import ActiveMember, HopMember, HopRules, PassiveMember
from testbed.sync.decentralized.bridge import SiteLeader
from testbed.sync.decentralized.hybrid import HybridMember
from testbed.sync.decentralized.parties import make_party
from tests.spec.files import EXPERIMENT, TOPOLOGY, spoilt, write

pytestmark = pytest.mark.unit


def placed(folder: Path, sync: dict[str, Any]) -> Placement:
    return Placement(Experiment.load(write(folder, experiment=EXPERIMENT | {"sync": sync})))


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
        {"strategy": "staggered", "policy": "cpn", "options": {"spatial": "sharded"}},
    ],
)
def test_every_place_makes_a_party(sync: dict[str, Any], tmp_path: Path) -> None:
    placement = placed(tmp_path, sync)
    members = placement.graph.members
    for member in members:
        place = Place.from_json(asdict(placement.place(member)))
        party = make_party(member, members, place, torch.zeros(3), 5, seed=1)
        assert party.name == member
        assert set(place.partners) <= set(members) - {member}
    bounds = placement.circle.bounds(members)
    assert (max(bounds.values()) < float("inf")) == (sync["strategy"] in ("hop", "dpsgd", "sgp"))


def test_between_sites_the_first_worker_of_each_stands_for_it(tmp_path: Path) -> None:
    placement = placed(tmp_path, {"strategy": "hop", "between": "sites", "max_ig": 3, "backup": 1})
    names = [worker.name for worker in Experiment.load(tmp_path / "experiment.yaml").topology.workers]
    parties = {}
    for name in names:
        place = Place.from_json(asdict(placement.place(name)))
        parties[name] = make_party(name, names, place, torch.zeros(3), 5, seed=1)
    leaders = {name for name, party in parties.items() if isinstance(party, SiteLeader)}
    assert leaders == {name for name in names if name.endswith("-w0")} == set(placement.circle.leaders)
    bounds = placement.circle.bounds(tuple(names))
    assert {pair for pair, bound in bounds.items() if bound < float("inf")} == set(permutations(leaders, 2))


def test_rules_come_through(tmp_path: Path) -> None:
    sync = {"strategy": "hop", "backup": 1, "max_ig": 4, "skip": {"jump": 10, "rule": 0.75}, "form": "parallel"}
    place = placed(tmp_path, sync).place("paris-w0")
    assert HopRules(**place.rules) == HopRules(max_ig=4, backup=1, max_jump=10, quantile=0.75, parallel=True)


def test_d_psgd_is_hops_standard_mode_with_metropolis_weights(tmp_path: Path) -> None:
    placement = placed(tmp_path, {"strategy": "dpsgd"})
    place = placement.place("paris-w0")
    party = make_party("paris-w0", placement.graph.members, place, torch.zeros(3), 5, seed=1)
    assert isinstance(party, HopMember) and HopRules(**place.rules) == HopRules()
    assert sum(place.weights.values()) == pytest.approx(1)


def test_ad_psgd_has_two_sides(tmp_path: Path) -> None:
    placement = placed(tmp_path, {"strategy": "adpsgd"})
    members = placement.graph.members
    kinds = [
        type(make_party(member, members, placement.place(member), torch.zeros(3), 5, seed=1)) for member in members
    ]
    assert kinds == [ActiveMember, PassiveMember, ActiveMember, PassiveMember]


@pytest.mark.parametrize(
    ("sync", "said"),
    [
        ({"strategy": "adpsgd", "graph": "complete"}, "sync.graph: a circle of odd length"),
        ({"strategy": "dpsgd", "graph": "exponential"}, "sync.graph: Metropolis weights need both directions"),
        ({"strategy": "hop", "backup": 3, "max_ig": 4}, "sync.backup: 3, where some member has 2 in-neighbours"),
        ({"strategy": "prague", "group": 5}, "sync.group: 5, where there are 4 workers"),
    ],
)
def test_what_the_workers_do_not_make_is_refused(sync: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(SpecError) as caught:
        placed(tmp_path, sync)
    assert said in str(caught.value) and "write instead" in str(caught.value)


def test_staggered_groups_are_those_of_the_policy_and_one_member_evaluates(tmp_path: Path) -> None:
    sync = {"strategy": "staggered", "policy": "cpn", "every": 6, "staleness": 2}
    uneven = spoilt(TOPOLOGY, "sites", "tokyo", "speed", to=0.5)
    placement = Placement(Experiment.load(write(tmp_path, uneven, EXPERIMENT | {"sync": sync})))
    places = {name: placement.place(name) for name in placement.graph.members}
    teams = placement.groups["teams"]
    assert [set(team["members"]) for team in teams] == [{"paris-w0", "paris-w1"}, {"tokyo-w0"}, {"dallas-w0"}]
    assert all(set(team["owners"]) <= set(team["members"]) for team in teams)
    steps = {name: place.steps for name, place in places.items()}
    assert steps == {"paris-w0": 6, "paris-w1": 6, "tokyo-w0": 3, "dallas-w0": 6}
    assert {name: place.evaluates for name, place in places.items() if place.evaluates} == {
        "paris-w0": (teams[0]["period"], teams[0]["phase"])
    }
    party = make_party("paris-w1", placement.graph.members, places["paris-w1"], torch.zeros(3), 5, 1, [9.0, 3, 2, 2])
    assert isinstance(party, HybridMember)
    rules = party._rules
    assert rules.staleness == 2 and rules.share("paris-w1") < rules.share("paris-w0")


def test_the_server_s_model_is_evaluated_by_one(tmp_path: Path) -> None:
    placement = placed(tmp_path, {"strategy": "fedasync", "every": 4})
    places = [placement.place(name) for name in placement.graph.members]
    assert [place.evaluates for place in places] == [(1, 0), None, None, None]
    assert {place.steps for place in places} == {4}
