"""Gossip in an experiment file, and compute that is slow at times: what is accepted and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from testbed.emulation.network.routing import Routes
from testbed.errors import BAD_INPUT, ending_of
from testbed.run.jobs import Jobs
from testbed.schemes import SCHEMES
from testbed.spec.errors import SpecError
from testbed.spec.experiment import Experiment
from testbed.spec.sync import read_sync
from tests.spec.files import EXPERIMENT, refused, write

pytestmark = pytest.mark.pure

SPEEDS = "# measured\ntime_s,speed\n0,1\n20,0.25\n30,1\n"


def load(folder: Path, sync: dict[str, Any], compute: dict[str, Any] | None = None) -> Experiment:
    (folder / "speed.csv").write_text(SPEEDS)
    return Experiment.load(write(folder, experiment=EXPERIMENT | {"sync": sync, "compute": compute or {}}))


@pytest.mark.parametrize(
    "sync",
    [
        {"strategy": "hop", "graph": "ring-based", "backup": 1, "max_ig": 4, "skip": {"jump": 10, "rule": 0.75}},
        {"strategy": "hop", "mode": "notify_ack", "form": "parallel"},
        {"strategy": "hop", "staleness": 3, "max_ig": 4, "skip": {"jump": 2}, "graph": "network", "degree": 2},
        {"strategy": "dpsgd", "graph": "torus"},
        {"strategy": "prague", "group": 2},
        {"strategy": "sgp", "graph": "exponential"},
        {"strategy": "fedasync", "every": 4},
        {"strategy": "halos", "accumulate": 12, "site": {"buffer": 6}, "overall": {"momentum": 0.0}, "codec": "bf16"},
        {"strategy": "decoupled_diloco", "every": 12, "fragments": 4, "quorum": 2, "codec": "fp16"},
        {"strategy": "staggered", "policy": "cpn", "staleness": 2, "codec": "fp16", "prox": 0.01},
    ],
)
def test_strategies_that_gossip(sync: dict[str, Any], tmp_path: Path) -> None:
    assert load(tmp_path, sync).spec.sync.scheme.exchange == "gossip"


@pytest.mark.parametrize(
    ("sync", "field"),
    [
        ({"strategy": "hop", "backup": 1}, "sync.backup"),
        ({"strategy": "hop", "backup": 1, "staleness": 1, "max_ig": 2}, "sync.staleness"),
        ({"strategy": "hop", "mode": "notify_ack", "max_ig": 4}, "sync.mode"),
        ({"strategy": "hop", "max_ig": 4, "skip": {"jump": 2}}, "sync.skip"),
        ({"strategy": "hop", "max_ig": 4, "backup": 1, "skip": {"jump": 2, "rule": 2.0}}, "sync.skip.rule"),
        ({"strategy": "hop", "degree": 4}, "sync.degree"),
        ({"strategy": "dpsgd", "backup": 1, "max_ig": 4}, "sync.backup"),
        ({"strategy": "hop", "policy": "mst"}, "sync.policy"),
        ({"strategy": "gradients", "graph": "ring"}, "sync.graph"),
        ({"strategy": "prague", "graph": "ring"}, "sync.graph"),
        ({"strategy": "hop", "every": 4}, "sync.every"),
        ({"strategy": "decoupled_diloco", "every": 8}, "sync.fragments"),
        ({"strategy": "decoupled_diloco", "codec": "int8"}, "sync.codec"),
        ({"codec": "topk:0.0"}, "sync.codec"),
        ({"strategy": "decoupled_diloco", "margin": 1.0}, "sync.margin"),
        ({"strategy": "halos", "merge": 0}, "sync.merge"),
        ({"strategy": "sparta", "outer": {"learning_rate": 0.5}}, "sync.outer"),
        ({"strategy": "halos", "overall": {"buffer": 0}}, "sync.overall.buffer"),
        ({"strategy": "staggered"}, "sync.policy"),
        ({"strategy": "staggered", "policy": "cpn", "codec": "int8"}, "sync.codec"),
        ({"strategy": "staggered", "policy": "cpn", "options": {"codecs": True}}, "sync.options.codecs"),
        ({"strategy": "staggered", "policy": "cpn", "options": {"spatial": "spread"}}, "sync.options.spatial"),
        ({"strategy": "staggered", "policy": "cpn", "options": {"overlap": True}}, "sync.options.overlap"),
        ({"strategy": "hybrid", "policy": "cpn", "options": {"temporal": True}}, "sync.options.temporal"),
        ({"strategy": "staggered", "policy": "cpn", "overlap": True}, "sync.overlap"),
        ({"strategy": "gradients", "policy": "cpn"}, "sync.policy"),
        ({"strategy": "auto", "policy": "cpn"}, "sync.policy"),
        ({"strategy": "sparseloco", "policy": "cpn"}, "sync.policy"),
        ({"strategy": "post_local_sgd", "policy": "cpn"}, "sync.policy"),
        ({"strategy": "post_local_sgd", "policy": "hips", "options": {"period": 4}}, "sync.options.period"),
        (
            {"strategy": "gradients", "policy": "hips", "options": {"period": 4}},
            "sync.options.period",
        ),
    ],
)
def test_rules_that_disagree_are_named(sync: dict[str, Any], field: str, tmp_path: Path) -> None:
    error = refused(tmp_path, EXPERIMENT | {"sync": sync})
    assert error.fields == (field,) and error.faults[0].remedy


@pytest.mark.parametrize("name", SCHEMES)
def test_a_file_s_defaults_are_the_scheme_s(name: str) -> None:
    """A scheme may have other defaults inside an option than other schemes with such an option: MuLoCo's `outer`."""
    policy = {"policy": "cpn"} if name == "staggered" else {}
    assert read_sync({"strategy": name, **policy}).own == SCHEMES[name].options()


def test_defaults_inside_an_option_count_where_the_file_has_a_part_of_it(tmp_path: Path) -> None:
    written = load(tmp_path, {"strategy": "halos", "overall": {"buffer": 3}}).spec.sync.own
    assert written == SCHEMES["halos"].read({"overall": {"buffer": 3}})


SCHEME = """
from dataclasses import dataclass
from testbed.schemes.options import Options, limited
from testbed.schemes.scheme import Scheme

@dataclass(frozen=True)
class Own(Options):
    every: int = limited(8, ge=1)
    colour: str = "red"

SCHEME = Scheme(name="own", options=Own, exchange="all-reduce", planned=True, source="nowhere")

def build(options, training):
    raise NotImplementedError
"""


def test_a_scheme_from_a_file_has_its_own_options(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(SCHEME)
    experiment = load(tmp_path, {"strategy": "./own.py", "every": 3, "policy": "mst"})
    sync = experiment.spec.sync
    assert (sync.scheme.name, sync.policy, vars(sync.own)) == ("own", "mst", {"every": 3, "colour": "red"})
    assert tmp_path / "own.py" in experiment.files
    tmp_path.chmod(0o755)  # as containers need it
    jobs = Jobs(experiment)
    (job, *_) = jobs.controller_spec(Routes.over(experiment.topology), 0.0).jobs.values()
    assert (job.scheme, job.options) == ("/work/own.py", {"every": 3, "colour": "red"})
    request = jobs.newcomer(experiment.topology, experiment.topology.workers[0], "10.0.0.2")[0]
    assert request.files == tmp_path, "a container sees the folder of the file as /work"
    for path, mode in ((tmp_path, 0o700), (tmp_path / "own.py", 0o600)):
        before = path.stat().st_mode
        path.chmod(mode)
        with pytest.raises(SpecError) as raised:
            Jobs(experiment)
        assert (raised.value.file, raised.value.faults[0].field) == (path, "sync.strategy")
        Jobs(experiment, in_containers=False)
        path.chmod(before)


@pytest.mark.parametrize(
    ("sync", "field"),
    [
        ({"strategy": "./none.py"}, "sync.strategy"),
        ({"strategy": "./empty.py"}, "sync.strategy"),
        ({"strategy": "./own.py", "every": 0}, "sync.every"),
        ({"strategy": "./own.py", "speed": 1}, "sync.speed"),
        ({"strategy": "./own.py", "max_ig": 4}, "sync.max_ig"),
    ],
)
def test_a_scheme_from_a_file_that_does_not_fit_is_named(sync: dict[str, Any], field: str, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(SCHEME)
    (tmp_path / "empty.py").write_text("")
    error = refused(tmp_path, EXPERIMENT | {"sync": sync})
    assert error.fields == (field,) and error.faults[0].remedy


def test_a_fault_of_a_scheme_from_a_file_is_told_with_its_place(tmp_path: Path) -> None:
    checks = '    def check_plan(self, policy, policy_options, codec):\n        return {}["no such key"]\n'
    text = SCHEME.replace("\nSCHEME =", f"\n{checks}\nSCHEME =")
    (tmp_path / "raising.py").write_text(text)
    with pytest.raises(KeyError) as raised:
        load(tmp_path, {"strategy": "./raising.py"})
    code, said = ending_of(raised.value)
    line = text.splitlines().index('        return {}["no such key"]') + 1
    assert code == BAD_INPUT and f"{tmp_path / 'raising.py'}, line {line}:" in said and "KeyError" in said


@pytest.mark.parametrize("coding", ["utf-8", "latin-1"])
def test_a_scheme_from_a_file_that_can_t_be_read_or_names_an_unknown_type_is_refused(
    coding: str, tmp_path: Path
) -> None:
    colour = "Colour" if coding == "utf-8" else "str"
    text = f"# -*- coding: {coding} -*-\n# é\n" + SCHEME.replace("colour: str", f"colour: '{colour}'")
    (tmp_path / "own.py").write_bytes(text.encode(coding))
    assert refused(tmp_path, EXPERIMENT | {"sync": {"strategy": "./own.py"}}).fields == ("sync.strategy",)


def test_a_scheme_from_a_file_stays_on_this_machine(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(SCHEME)
    experiment = EXPERIMENT | {"sync": {"strategy": "./own.py"}, "hosts": "all"}
    assert refused(tmp_path, experiment).fields == ("sync.strategy",)


def test_slow_workers_have_their_times(tmp_path: Path) -> None:
    compute = {
        "step_time": "60ms",
        "slowdown": {"factor": 6, "probability": 0.0625},
        "stragglers": {"paris-w1": 4},
        "speeds": {"paris": "speed.csv", "tokyo-w0": "speed.csv"},
    }
    experiment = load(tmp_path, {"strategy": "hop"}, compute)
    seconds = {w.name: experiment.spec.compute.step_seconds(w) for w in experiment.topology.workers}
    assert seconds == {"paris-w0": 0.06, "paris-w1": 0.24, "tokyo-w0": 0.06, "dallas-w0": 0.06}
    assert experiment.speeds.keys() == {"paris-w0", "paris-w1", "tokyo-w0"}
    assert experiment.speeds["tokyo-w0"] == ((0.0, 1.0), (20.0, 0.25), (30.0, 1.0))
    assert tmp_path / "speed.csv" in experiment.files


@pytest.mark.parametrize(
    ("compute", "field"),
    [
        ({"slowdown": {"probability": 0.1}}, "compute.step_time"),
        ({"step_time": "1s", "stragglers": {"paris-w9": 4}}, "compute.stragglers.paris-w9"),
        ({"step_time": "1s", "stragglers": {"paris-w0": 0}}, "compute.stragglers.paris-w0"),
        ({"step_time": "1s", "speeds": {"rome": "speed.csv"}}, "compute.speeds.rome"),
        ({"step_time": "1s", "speeds": {"paris": "none.csv"}}, "compute.speeds.paris"),
    ],
)
def test_slow_workers_that_cannot_be(compute: dict[str, Any], field: str, tmp_path: Path) -> None:
    (tmp_path / "speed.csv").write_text(SPEEDS)
    assert refused(tmp_path, EXPERIMENT | {"sync": {"strategy": "hop"}, "compute": compute}).fields == (field,)
