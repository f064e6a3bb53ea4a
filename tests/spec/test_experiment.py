from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from testbed.link import LinkState
from testbed.planning import policy_names
from testbed.spec.errors import SpecError
from testbed.spec.event import LinkChange
from testbed.spec.experiment import Experiment
from testbed.spec.train import DATASETS, PARAMETERS
from tests.spec.files import EXPERIMENT, TOPOLOGY, refused, spoilt, write

pytestmark = pytest.mark.pure

ROOT = Path(__file__).parents[2]
GPT = spoilt(EXPERIMENT, "train", "model", to="gpt-small")


@pytest.mark.parametrize("file", sorted((ROOT / "experiments").glob("*.yaml")), ids=lambda file: file.name)
def test_an_experiment_of_the_project_loads(file: Path) -> None:
    experiment = Experiment.load(file)
    assert experiment.spec.sync.policy in policy_names()
    assert set(experiment.networks) == {event.swap for event in experiment.spec.events if event.swap}


def test_the_seed_draws_the_traffic_of_every_network(tmp_path: Path) -> None:
    busy = {**TOPOLOGY, "traffic": [{"on_off": {"rate": "20%", "busy": "1s", "idle": "2s"}}]}
    file = write(tmp_path, busy, {**EXPERIMENT, "events": [{"round": 1, "swap": "topology.yaml"}]})
    networks = []
    for seed in ("1", "1", "2"):
        experiment = Experiment.load(file, {"seed": seed})
        added = experiment.add_network(tmp_path / "topology.yaml")
        assert experiment.topology.links == experiment.networks["topology.yaml"].links == added.links
        networks.append(experiment.topology.links)
    assert networks[0] == networks[1] != networks[2]


def test_the_scale_is_on_every_network(tmp_path: Path) -> None:
    value = EXPERIMENT | {"scale": 0.5, "events": [{"at": "1s", "swap": "topology.yaml"}]}
    experiment = Experiment.load(write(tmp_path, experiment=value))
    for topology in (experiment.topology, experiment.networks["topology.yaml"]):
        assert topology.links["paris->tokyo"].state.rate_bps == 25e6


@pytest.mark.parametrize("folder", ["", "experiments"])
def test_a_topology_may_be_a_preset_wherever_the_experiment_is(
    folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("experiments").mkdir()
    file = write(Path(folder), experiment=EXPERIMENT | {"topology": "smoke"})
    assert Experiment.load(file).topology.name == "smoke"
    (file.parent / "smoke").write_bytes((file.parent / "topology.yaml").read_bytes())
    assert Experiment.load(file).topology.name == "three"


@pytest.mark.parametrize("model", sorted(DATASETS))
def test_a_round_s_bytes_are_known_beforehand(model: str, tmp_path: Path) -> None:
    train = {"model": model, "rounds": 1} | ({"parameters": 1000} if model == "synthetic" else {})
    experiment = Experiment.load(write(tmp_path, experiment=EXPERIMENT | {"train": train}))
    assert experiment.spec.train.model_bytes == 4 * PARAMETERS.get(model, 1000)


@pytest.mark.parametrize(
    ("sync", "numbers"),
    [
        ({}, 4.0),
        ({"codec": "int8"}, 1 + 4 / 256),
        ({"codec": "topk:0.01"}, 0.06),
        ({"strategy": "diloco", "fragments": 4, "codec": "bf16"}, 0.5),
    ],
)
def test_codecs_and_fragments_make_rounds_smaller(sync: dict[str, Any], numbers: float, tmp_path: Path) -> None:
    value = EXPERIMENT | {"sync": sync, "train": {"model": "synthetic", "parameters": 10_000, "rounds": 1}}
    assert Experiment.load(write(tmp_path, experiment=value)).spec.round_bytes == round(10_000 * numbers)


def test_a_link_s_codec_is_that_of_all_members_that_send_from_site_to_site(tmp_path: Path) -> None:
    value = EXPERIMENT | {"sync": {"link_codecs": {"paris->tokyo": "int8", "tokyo->dallas": "topk:0.01"}}}
    experiment = Experiment.load(write(tmp_path, experiment=value))
    assert experiment.link_codecs_among(experiment.topology) == {
        "paris-w0->tokyo-w0": "int8",
        "paris-w1->tokyo-w0": "int8",
        "tokyo-w0->dallas-w0": "topk:0.01",
    }


def test_an_override_is_yaml_at_a_path(tmp_path: Path) -> None:
    file = write(tmp_path)
    overrides = {"train.rounds": "7", "sync.policy": "star", "compute.step_time": "10ms", "events": "[]"}
    spec = Experiment.load(file, overrides).spec
    assert (spec.train.rounds, spec.sync.policy, spec.compute.step_time) == (7, "star", 0.010)


def test_an_override_leaves_the_other_places_of_an_alias(tmp_path: Path) -> None:
    shared: dict[str, str] = {}
    value = EXPERIMENT | {"compute": {"speeds": shared}, "sync": {"link_codecs": shared}}
    file = write(tmp_path, experiment=value)
    assert "*" in file.read_text()
    spec = Experiment.load(file, {"sync.link_codecs.paris->tokyo": "int8"}).spec
    assert (spec.sync.link_codecs, spec.compute.speeds) == ({"paris->tokyo": "int8"}, {})


@pytest.mark.parametrize(
    ("key", "text", "field"),
    [
        ("train.rounds", "many", "train.rounds"),
        ("train.round", "7", "train.round"),
        ("rounds", "7", "rounds"),
        ("name.first", "x", "name.first"),
        ("train.rounds", "[1", "train.rounds"),
        ("seed", '!!int ""', "seed"),
        ("seed", "2001-99-99", "seed"),
        ("topology", "elsewhere.yaml", "file"),
        ("", "3", repr("")),
        ("\udcff", "3", repr("\udcff")),
    ],
)
def test_an_override_obeys_the_file_s_rules(key: str, text: str, field: str, tmp_path: Path) -> None:
    error = refused(tmp_path, EXPERIMENT, {key: text})
    assert error.fields == (field,)
    assert error.faults[0].remedy


@pytest.mark.parametrize(
    ("value", "field", "remedy"),
    [
        (spoilt(EXPERIMENT, "topology", to=...), "topology", ""),
        (spoilt(EXPERIMENT, "train", "model", to="resnet"), "train.model", "'cnn'"),
        (spoilt(EXPERIMENT, "train", "dataset", to="text"), "train.dataset", "digits"),
        (spoilt(EXPERIMENT, "train", "rank", to=4), "train.rank", "GPT"),
        (spoilt(GPT, "train", "rank", to=64), "train.rank", "64"),
        (
            spoilt(spoilt(GPT, "train", "rank", to=4), "train", "optimizer", to={"name": "muon"}),
            "train.optimizer.name",
            "adamw",
        ),
        (spoilt(EXPERIMENT, "train", "parameters", to=9), "train.parameters", "both"),
        (spoilt(EXPERIMENT, "train", "rounds", to=0), "train.rounds", "1"),
        (spoilt(EXPERIMENT, "train", "rounds", to="3"), "train.rounds", "whole"),
        (EXPERIMENT | {"scale": 0}, "scale", "0.001"),
        (EXPERIMENT | {"scale": float("inf")}, "scale", "finite"),
        (EXPERIMENT | {"seed": 2**70}, "seed", "below"),
        (EXPERIMENT | {"backend": "magic"}, "backend", "'netem'"),
        (EXPERIMENT | {"controller": {"margin": -1}}, "controller.margin", "0"),
        (EXPERIMENT | {"controller": {"period": "0s"}}, "controller.period", "at least 100ms"),
        (EXPERIMENT | {"sync": {"round_timeout": "500ms"}}, "sync.round_timeout", "at least 1s"),
        (EXPERIMENT | {"elastic": {"quorum": 1, "lease": "100ms"}}, "elastic.lease", "at least 500ms"),
        (EXPERIMENT | {"sync": {"strategy": "gossip"}}, "sync.strategy", "'local_sgd'"),
        (EXPERIMENT | {"sync": {"every": 8}}, "sync.every", "strategy: local_sgd"),
        (EXPERIMENT | {"sync": {"strategy": "local_sgd", "outer": {}}}, "sync.outer", "strategy: diloco"),
        (
            EXPERIMENT | {"sync": {"strategy": "diloco", "fragments": 3}},
            "sync.fragments",
            "",
        ),
        (EXPERIMENT | {"sync": {"strategy": "diloco", "every": 16, "fragments": 16}}, "sync.fragments", "at most 8"),
        (
            EXPERIMENT
            | {
                "sync": {"strategy": "diloco", "fragments": 8},
                "train": {"model": "synthetic", "parameters": 7, "rounds": 1},
            },
            "sync.fragments",
            "at most 7",
        ),
        (EXPERIMENT | {"sync": {"strategy": "diloco", "delay": 8}}, "sync.delay", "8"),
        (EXPERIMENT | {"sync": {"strategy": "sparseloco", "codec": "int8"}}, "sync.codec", "sparse"),
        (EXPERIMENT | {"sync": {"strategy": "muloco"}}, "train.optimizer.name", "name: muon"),
        (
            EXPERIMENT
            | {"sync": {"strategy": "des_loc"}, "train": EXPERIMENT["train"] | {"optimizer": {"name": "muon"}}},
            "train.optimizer.name",
            "name: adam",
        ),
        (EXPERIMENT | {"sync": {"codec": "int3"}}, "sync.codec", "int8"),
        (EXPERIMENT | {"transport": "mine"}, "transport", "kernel"),
        (EXPERIMENT | {"sync": {"codec": "int8", "powersgd_rank": 2}}, "sync.codec", ""),
        (
            EXPERIMENT | {"sync": {"link_codecs": {"paris->tokyo": "int3"}}},
            "sync.link_codecs.paris->tokyo",
            "int8",
        ),
        (
            EXPERIMENT | {"sync": {"link_codecs": {"paris->rome": "int8"}}},
            "sync.link_codecs.paris->rome",
            "tokyo",
        ),
        (
            EXPERIMENT | {"sync": {"link_codecs": {"paris->tokyo": "int8", "paris-tokyo": "fp16"}}},
            "sync.link_codecs.paris-tokyo",
            "'paris->tokyo'",
        ),
        (EXPERIMENT | {"sync": {"streams": 0}}, "sync.streams", "1"),
        (EXPERIMENT | {"sync": {"congestion": "reno; rm"}}, "sync.congestion", ""),
        (EXPERIMENT | {"events": [{"at": "1s"}]}, "events.0", "change"),
        (EXPERIMENT | {"events": [{"down": ["paris", "tokyo"]}]}, "events.0", "at: 30s"),
        (EXPERIMENT | {"events": [{"at": "1s", "down": ["paris", "rome"]}]}, "events.0.down", "paris->tokyo"),
        (
            EXPERIMENT | {"events": [{"at": "1s", "down": ["paris", "tokyo"], "up": ["paris", "tokyo"]}]},
            "events.0",
            "",
        ),
        (
            EXPERIMENT | {"events": [{"at": "1s", "change": {"link": "tokyo-dallas", "rate": "1mbit"}}]},
            "events.0.change.link",
            "paris->tokyo",
        ),
        (EXPERIMENT | {"events": [{"at": "1s", "change": {"link": "paris->tokyo"}}]}, "events.0.change", "rate: 8mbit"),
        (EXPERIMENT | {"events": [{"at": "1s", "swap": ""}]}, "events.0.swap", ""),
        (
            EXPERIMENT | {"train": {"model": "cnn", "rounds": 3, "partition": {"alpha": 0.1}}},
            "train.partition.alpha",
            "kind: dirichlet",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_breaks_a_rule_is_named(value: Any, field: str, remedy: str, tmp_path: Path) -> None:
    error = refused(tmp_path, value)
    assert (error.file, error.faults[0].field) == (tmp_path / "experiment.yaml", field)
    assert remedy in error.faults[0].remedy


@pytest.mark.parametrize(
    "other",
    [
        spoilt(TOPOLOGY, "sites", "tokyo", "workers", to=2),
        spoilt(TOPOLOGY, "sites", "tokyo", "speed", to=0.5),
        spoilt(TOPOLOGY, "lan", to={"rate": "100mbit"}),
    ],
)
def test_a_swap_keeps_the_workers_and_the_lan(other: Any, tmp_path: Path) -> None:
    (tmp_path / "other.yaml").write_text(yaml.safe_dump(other))
    error = refused(tmp_path, EXPERIMENT | {"events": [{"at": "1s", "swap": "other.yaml"}]})
    assert error.fields == ("events.0.swap",)
    assert "paris-w0, paris-w1, tokyo-w0, dallas-w0" in str(error)


def test_a_swap_may_name_sites_in_another_order_and_add_one_between(tmp_path: Path) -> None:
    link = {"between": ["rome", "paris"], "rate": "1mbit", "delay": "1ms"}
    other = spoilt(spoilt(TOPOLOGY, "sites", "rome", to={"workers": 0}), "links", 2, to=link)
    (tmp_path / "other.yaml").write_text(yaml.safe_dump(other, sort_keys=True))
    events = [{"at": "1s", "swap": "other.yaml"}, {"at": "2s", "down": ["rome", "paris"]}]
    assert Experiment.load(write(tmp_path, experiment=EXPERIMENT | {"events": events})).networks


def test_a_fault_in_a_topology_names_the_topology(tmp_path: Path) -> None:
    file = write(tmp_path, topology=spoilt(TOPOLOGY, "links", 0, "rate", to="-1mbit"))
    with pytest.raises(SpecError) as caught:
        Experiment.load(file)
    assert (caught.value.file, caught.value.fields) == (tmp_path / "topology.yaml", ("links.0.rate",))


def test_a_change_leaves_what_it_does_not_name() -> None:
    before = LinkState(10e6, 0.01, 0.001, 0.1)
    change = LinkChange.model_validate({"link": "a->b", "rate": "20mbit", "loss": "0%"})
    assert change.over(before) == LinkState(20e6, 0.01, 0.001, 0.0)


THERE: dict[str, Any] = {"swap": "other.yaml"}
BACK: dict[str, Any] = {"swap": "topology.yaml"}
REMOVED: dict[str, Any] = {"down": ["paris", "tokyo"]}
ADDED: dict[str, Any] = {"down": ["dallas", "tokyo"]}
CHANGE: dict[str, Any] = {"change": {"link": "paris->tokyo", "rate": "1mbit"}}


#: An event may follow each of three rounds.
LONGER = spoilt(EXPERIMENT, "train", "rounds", to=4)


@pytest.mark.parametrize(
    ("events", "field"),
    [
        ([{"at": "5s", **THERE}, {"at": "4s", **REMOVED}, {"at": "6s", **ADDED}], None),
        ([{"at": "5s", **THERE}, {"at": "5s", **ADDED}], None),
        ([{"at": "5s", **REMOVED}, {"at": "5s", **THERE}], None),
        ([{"round": 1, **THERE}, {"at": "4s", **ADDED}], None),
        ([{"round": 3, **ADDED}, {"round": 2, **THERE}, {"round": 1, **REMOVED}], None),
        ([{"round": 2, **THERE}, {"at": "9s", **REMOVED}, {"at": "9s", **ADDED}], None),
        ([{"at": "9s", **THERE}, {"round": 3, **REMOVED}, {"round": 1, **ADDED}], None),
        ([{"round": 1, **THERE}, {"round": 3, **BACK}, {"round": 3, **REMOVED}, {"round": 3, **CHANGE}], None),
        ([{"at": "5s", **THERE}, {"at": "4s", **ADDED}], "events.1.down"),
        ([{"at": "5s", **THERE}, {"at": "6s", **REMOVED}], "events.1.down"),
        ([{"at": "5s", **ADDED}, {"at": "5s", **THERE}], "events.0.down"),
        ([{"round": 2, **THERE}, {"round": 3, **REMOVED}], "events.1.down"),
        ([{"round": 2, **THERE}, {"round": 2, **CHANGE}], "events.1.change.link"),
        ([{"round": 2, **THERE}, {"round": 1, **ADDED}], "events.1.down"),
        ([{"round": 1, **THERE}, {"round": 3, **BACK}, {"round": 2, **REMOVED}], "events.2.down"),
        ([{"at": "5s", **THERE}, {"round": 1, **THERE}, {"at": "6s", **REMOVED}], "events.2.down"),
        ([{"round": LONGER["train"]["rounds"], **REMOVED}], "events.0.round"),
    ],
)
def test_events_are_checked_against_the_networks_that_may_be_in_force_then(
    events: list[dict[str, Any]], field: str | None, tmp_path: Path
) -> None:
    """Before a swap the new link is not there; after it the removed one is not. At one moment the order counts.

    Whether a round's swap comes before a time is unknown, so either network may be in force.
    """
    other = spoilt(TOPOLOGY, "links", 0, to={"between": ["dallas", "tokyo"], "rate": "1mbit", "delay": "1ms"})
    (tmp_path / "other.yaml").write_text(yaml.safe_dump(other))
    if field is None:
        Experiment.load(write(tmp_path, experiment=LONGER | {"events": events}))
    else:
        assert refused(tmp_path, LONGER | {"events": events}).fields == (field,)


def test_a_strategy_that_chooses_by_plans_keeps_none(tmp_path: Path) -> None:
    chosen = EXPERIMENT | {"sync": {"strategy": "auto", "policy": "auto"}}
    assert Experiment.load(write(tmp_path, experiment=chosen)).spec.sync.scheme.conducted
    assert refused(tmp_path, chosen | {"controller": {"hold": True}}).fields == ("controller.hold",)


def test_a_shortened_run_keeps_its_file_s_later_events(tmp_path: Path) -> None:
    file = write(tmp_path, experiment=LONGER | {"events": [{"round": 3, "down": "paris-tokyo"}]})
    assert Experiment.load(file).shortened_from is None
    assert Experiment.load(file, {"train.rounds": "2"}).shortened_from == 4
    assert Experiment.load(file, {"train.rounds": "5"}).shortened_from is None
    later = LONGER | {"events": [{"round": 5, "down": "paris-tokyo"}]}
    assert refused(tmp_path, later, {"train.rounds": "2"}).fields == ("events.0.round",)


@pytest.mark.parametrize("written", ["st-denis->tokyo", "st-denis-tokyo", ["st-denis", "tokyo"], "[st-denis, tokyo]"])
def test_a_link_is_written_in_any_of_three_ways(tmp_path: Path, written: object) -> None:
    topology = yaml.safe_load(yaml.safe_dump(TOPOLOGY).replace("paris", "st-denis"))
    events = [{"at": "1s", "down": written}, {"at": "2s", "up": written}]
    events.append({"at": "3s", "change": {"link": written, "rate": "1mbit"}})
    codecs = {} if isinstance(written, list) else {"link_codecs": {written: "fp16"}}
    experiment = EXPERIMENT | {"events": events, "sync": EXPERIMENT["sync"] | codecs}
    spec = Experiment.load(write(tmp_path, topology, experiment)).spec
    link = "st-denis->tokyo"
    assert [event.down or event.up or (event.change and event.change.link) for event in spec.events] == 3 * [link]
    assert spec.events[0].pair == ("st-denis", "tokyo")
    assert spec.sync.link_codecs == ({} if isinstance(written, list) else {link: "fp16"})


@pytest.mark.parametrize(
    ("more", "field", "said"),
    [
        ({"elastic": {"quorum": 99}}, "elastic.quorum", "99"),
        ({"elastic": {"quorum": 0}}, "elastic.quorum", "1"),
        ({"elastic": {"quorum": 1, "lost": "mourn"}}, "elastic.lost", "restart"),
        ({"elastic": {"quorum": 1}, "sync": {"strategy": "hierarchical"}}, "elastic", "gradients, local_sgd, des_loc"),
        ({"elastic": {"quorum": 1}, "sync": {"powersgd_rank": 2}}, "elastic", "`powersgd_rank`"),
        ({"elastic": {"quorum": 1}, "sync": {"strategy": "diloco", "delay": 1}}, "elastic", "`delay`"),
        ({"elastic": {"quorum": 1}, "sync": {"strategy": "prague"}}, "elastic", "hop, dpsgd"),
        ({"elastic": {"quorum": 1}, "sync": {"strategy": "hop", "between": "sites"}}, "elastic", "between: workers"),
        ({"elastic": {"quorum": 1, "lease": "9s"}, "sync": {"strategy": "hop"}}, "elastic.lease", ""),
        ({"events": [{"at": "1s", "kill": "paris-w0"}]}, "events.0.kill", ""),
        (
            {"elastic": {"quorum": 1}, "events": [{"at": "1s", "kill": "rome-w0"}]},
            "events.0.kill",
            "rome-w0",
        ),
    ],
)
def test_what_an_elastic_run_can_not_have(more: dict[str, Any], field: str, said: str, tmp_path: Path) -> None:
    error = refused(tmp_path, EXPERIMENT | more)
    assert field in error.fields and said in str(error)
