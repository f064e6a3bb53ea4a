"""The runs of a sweep or a comparison, their keys, and the input that is refused before the first run."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from testbed.cli import app
from testbed.run.sweep.planned_run import Point, Variant, combinations, hash_of, point_at, runs_at
from testbed.spec.experiment import Experiment
from testbed.starts import new_policy, new_scheme
from tests.run import pair
from tests.run.running import REPOSITORY
from tests.spec.files import EXPERIMENT, TOPOLOGY, spoilt
from tests.waiting import PATIENCE_S

TRACED = spoilt(TOPOLOGY, "links", 0, "trace", to={"file": "trace.csv"})
TRACE = "time_s,rate_mbps\n0,50\n1,40\n"
COMMAND = {"command": ["python", "train.py", "--steps", "4"], "image": "requirements.txt"}
PROGRAM = {"name": "program", "topology": "topology.yaml", "train": COMMAND}


def write(folder: Path, experiment: dict[str, Any] = EXPERIMENT, topology: dict[str, Any] = TRACED) -> Path:
    for name, text in {"train.py": "print()\n", "requirements.txt": "torch\n", "trace.csv": TRACE}.items():
        (folder / name).write_text(text)
    (folder / "topology.yaml").write_text(yaml.safe_dump(topology))
    (folder / "experiment.yaml").write_text(yaml.safe_dump(experiment))
    return folder / "experiment.yaml"


def hashed(file: Path, **overrides: str) -> str:
    return hash_of(Experiment.load(file, overrides))


@pytest.mark.pure
@given(st.integers(1, 4), st.sets(st.integers(0, 99), min_size=1, max_size=4), st.integers(1, 3))
def test_every_point_has_every_seed_so_often_and_no_run_is_twice(points: int, seeds: set[int], repeats: int) -> None:
    runs = runs_at([Point({"a": str(n)}, {}, "same") for n in range(points)], sorted(seeds), repeats)
    assert len({run.key for run in runs}) == len(runs) == points * len(seeds) * repeats
    neighbours = [run.point.labels["a"] for run in runs[:points]]
    assert neighbours == [str(n) for n in range(points)]


@pytest.mark.pure
def test_a_combination_has_what_each_of_its_points_sets() -> None:
    axes = {
        "scale": {"0.5": {"scale": 0.5}},
        "net": {"far": {"topology": "far.yaml", "transport": "kernel"}, "own": {}},
    }
    assert list(combinations(axes)) == [
        ({"scale": "0.5", "net": "far"}, {"scale": "0.5", "topology": "far.yaml", "transport": "kernel"}),
        ({"scale": "0.5", "net": "own"}, {"scale": "0.5"}),
    ]
    assert list(combinations({})) == [({}, {})]


@pytest.mark.pure
def test_the_key_is_of_the_experiment_its_labels_seed_and_repeat(tmp_path: Path) -> None:
    file = write(tmp_path)
    (run,) = runs_at([point_at(file, {"scale": "1"}, {"scale": "1"})], [7])
    (again,) = runs_at([point_at(file, {"scale": "1"}, {"scale": "1"})], [7])
    others = [
        *runs_at([point_at(file, {"scale": "1"}, {"scale": "0.5"})], [7]),
        *runs_at([point_at(file, {"rates": "1"}, {"scale": "1"})], [7]),
        *runs_at([point_at(file, {"scale": "1"}, {"scale": "1"})], [8]),
        *runs_at([point_at(file, {"scale": "1"}, {"scale": "1"})], [7], 2)[1:],
    ]
    assert again.key == run.key
    assert len({each.key for each in (run, *others)}) == 5
    assert run.overrides == {"scale": "1", "seed": "7"}


@pytest.mark.pure
def test_the_seed_and_what_says_nothing_are_no_part_of_the_hash(tmp_path: Path) -> None:
    file = write(tmp_path)
    before = hashed(file)
    assert hashed(file, seed="9") == before
    file.write_text(f"# A comment.\n{file.read_text()}\nscale: 1.0  # as it is by default\n")
    assert hashed(file) == before


@pytest.mark.pure
@pytest.mark.parametrize(("name", "old", "new"), [("trace.csv", "40", "41"), ("topology.yaml", "80mbit", "81mbit")])
def test_what_the_files_hold_is(name: str, old: str, new: str, tmp_path: Path) -> None:
    file = write(tmp_path)
    before = hashed(file)
    (tmp_path / name).write_text((tmp_path / name).read_text().replace(old, new))
    assert hashed(file) != before


@pytest.mark.pure
@pytest.mark.parametrize("name", ["train.py", "requirements.txt"])
def test_so_are_a_command_s_script_and_image(name: str, tmp_path: Path) -> None:
    file = write(tmp_path, PROGRAM)
    before = hashed(file)
    (tmp_path / name).write_text("numpy\n")
    assert hashed(file) != before


@pytest.mark.pure
@pytest.mark.parametrize("on_host", [False, True])
def test_so_is_the_file_of_a_command_s_scheme(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, on_host: bool) -> None:
    (here := tmp_path / "here").mkdir()
    monkeypatch.chdir(here)
    [scheme] = new_scheme("mine", here if on_host else tmp_path)
    train = {"command": ["python"], "scheme": "./mine.py:every=2", "on_host": on_host}
    file = write(tmp_path, {**PROGRAM, "train": train})
    before = hashed(file)
    scheme.write_text(f"{scheme.read_text()}\n# Changed.\n")
    assert hashed(file) != before


@pytest.mark.pure
@pytest.mark.parametrize("image", ["requirements.txt", ".", "./Dockerfile", "Dockerfile"])
def test_so_is_what_the_image_s_file_names(image: str, tmp_path: Path) -> None:
    file = write(tmp_path, spoilt(PROGRAM, "train", "image", to=image))
    (tmp_path / "requirements.txt").write_text("-r base.txt\n")
    (tmp_path / "Dockerfile").write_text("FROM scratch\nCOPY base.txt /\n")
    (tmp_path / ".dockerignore").write_text("ignored\n")
    (tmp_path / "base.txt").write_text("six\n")
    before = hashed(file)
    (tmp_path / "ignored").write_text("x")
    assert hashed(file) == before
    (tmp_path / "base.txt").write_text("six<2\n")
    assert hashed(file) != before


@pytest.mark.pure
def test_a_script_within_the_command_may_be_longer_than_a_file_s_name(tmp_path: Path) -> None:
    script = "print(1); " * 100
    file = write(tmp_path, spoilt(PROGRAM, "train", "command", to=["python", "-c", script]))
    assert hashed(file) != hashed(write(tmp_path, spoilt(PROGRAM, "train", "command", to=["python", "-c", "pass"])))


@pytest.mark.pure
def test_on_the_host_a_command_names_files_of_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (place := tmp_path / "experiments").mkdir()
    file = write(place, {**PROGRAM, "train": {"command": ["python", "train.py"], "on_host": True}})
    (tmp_path / "train.py").write_text("print()\n")
    monkeypatch.chdir(tmp_path)
    before = hashed(file)
    (place / "train.py").write_text("exit()\n")
    assert hashed(file) == before
    (tmp_path / "train.py").write_text("exit()\n")
    assert hashed(file) != before


@pytest.mark.pure
@pytest.mark.parametrize("word", ["/proc/self/mem", "../beside.py"])  # the first is a file that can't be read
def test_what_else_the_machine_has_is_no_part_of_a_command(word: str, tmp_path: Path) -> None:
    (place := tmp_path / "experiments").mkdir()
    beside = tmp_path / "beside.py"
    beside.write_text("print()\n")
    file = write(place, spoilt(PROGRAM, "train", "command", to=["python", word]))
    before = hashed(file)
    beside.write_text("exit()\n")
    assert hashed(file) == before


@pytest.mark.pure
def test_where_the_files_lie_is_not(tmp_path: Path) -> None:
    (other := tmp_path / "elsewhere").mkdir()
    assert hashed(write(tmp_path)) == hashed(write(other))


@pytest.mark.pure
@pytest.mark.parametrize(
    "sync",
    [
        {"policy": "./policy.py"},
        {"policy": "auto", "options": {"also": ["./policy.py"]}},
        {"strategy": "./mine.py"},
    ],
)
def test_where_a_policy_or_a_scheme_lies_is_not(sync: dict[str, Any], tmp_path: Path) -> None:
    hashes = []
    for place in (tmp_path / "one", tmp_path / "two"):
        place.mkdir()
        new_policy("policy", place)
        new_scheme("mine", place)
        file = write(place, {**EXPERIMENT, "sync": sync})
        hashes.append(hashed(file))
    assert hashes[0] == hashes[1]
    assert hashed(write(place, {**EXPERIMENT, "sync": {}})) != hashes[0]
    for plugin in ("policy", "mine"):
        (place / f"{plugin}.py").write_text((place / f"{plugin}.py").read_text() + "\n# Another version.\n")
    assert hashed(write(place, {**EXPERIMENT, "sync": sync})) != hashes[0]


@pytest.mark.pure
def test_in_words_a_label_alone_needs_no_axis() -> None:
    one = Point({"sync.policy": "mst"}, {}, "")
    two = Point({"sync.policy": "mst", "scale": "0.5"}, {}, "")
    assert [run.words for run in runs_at([one, two], [3])] == ["mst, seed 3", "sync.policy mst, scale 0.5, seed 3"]
    assert runs_at([Point({}, {}, "")], [3], 2)[1].words == "seed 3, repeat 2"


SMOKE = str(REPOSITORY / "experiments" / "smoke.yaml")

#: As little as two policies can be compared on.
PAIR = {
    "name": "pair",
    "topology": "topology.yaml",
    "train": {"model": "cnn", "batch": 16, "rounds": 6, "evaluate_every": 3},
    "compute": {"step_time": "100ms"},
    "sync": {"policy": "mst"},
}


@pytest.mark.pure
@pytest.mark.parametrize(
    ("text", "policy", "options"),
    [
        ("mst", "mst", None),
        ("netstorm:roots=2", "netstorm", {"roots": 2}),
        ("star:server=paris-w0", "star", {"server": "paris-w0"}),
    ],
)
def test_a_policy_is_named_with_its_options(text: str, policy: str, options: dict[str, object] | None) -> None:
    assert Variant.parse(text) == Variant(text, policy, options)


@pytest.mark.pure
def test_a_list_of_policies_is_split_outside_of_brackets() -> None:
    listed = Variant.parse_list("mst,auto:also=[mst,[star]]:try=2,star")
    assert [variant.text for variant in listed] == ["mst", "auto:also=[mst,[star]]:try=2", "star"]
    assert listed[1] == Variant.parse(listed[1].text)
    assert listed[1].options == {"also": ["mst", ["star"]], "try": 2}
    assert [variant.text for variant in Variant.parse_list("mst],star")] == ["mst]", "star"]


@pytest.mark.pure
def test_the_files_options_are_for_the_files_policy() -> None:
    assert Variant.parse("mst").overrides(own="mst") == {}
    assert Variant.parse("mst").overrides(own="star") == {"sync.policy": "mst", "sync.options": "{}"}
    assert Variant.parse("star:server=a-w0").overrides(own="star")["sync.options"] == "{server: a-w0}"


@pytest.mark.pure
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--policies", "mst,nosuch"), "nosuch"),
        (("--policies", "mst:roots=2"), "roots"),
        (("--policies", "mst:roots"), "'roots'"),
        (("--policies", "mst,mst"), "twice"),
        (("--policies", "mst", "--seeds", "one"), "--seeds one"),
        (("--policies", "mst", "--seeds", "-1"), "seed"),
        (("--policies", "mst", "--set", "seed=5"), "--seeds sets the seed, as --set seed does"),
        (("--policies", "mst,netstorm", "--set", "sync.policy=star"), "--policies sets the policy"),
        (("--policies", "netstorm:roots=1", "--set", "sync.options.roots=2"), "--policies sets the policy"),
    ],
)
def test_bad_input_is_refused_before_the_first_run(
    words: tuple[str, ...], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    ended = CliRunner().invoke(app, ["compare", SMOKE, *words])
    assert ended.exit_code == 2
    assert said in " ".join(ended.stderr.split())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.system
def test_each_policy_runs_and_the_figures_are_told(tmp_path: Path) -> None:
    for name, value in (("pair", PAIR), ("topology", pair.TOPOLOGY)):
        (tmp_path / f"{name}.yaml").write_text(json.dumps(value))
    words = ("pair.yaml", "--policies", "mst,netstorm:roots=2", "--seeds", "7", "--json")
    command = [sys.executable, "-m", "testbed", "compare", *words]
    ended = subprocess.run(command, cwd=tmp_path, text=True, capture_output=True, timeout=PATIENCE_S, check=False)
    assert ended.returncode == 0, ended.stderr
    assert "\n2 of 2: netstorm:roots=2, seed 7; about " in ended.stderr
    figures = json.loads(ended.stdout)
    assert list(figures) == ["mst", "netstorm:roots=2"]
    for own in figures.values():
        assert own["seconds_per_round_p50"] > 0
        assert own["ratio_to_lower_bound"] > 0.95
        assert own["ratio_to_bound"] > 0.9
        assert own["wan_bytes"] > 6 * 4 * 151_306  # six rounds of the model cross the WAN at least once each
        assert len(own["verdicts"]) == len(own["runs"]) == 1
        manifest = json.loads((tmp_path / own["runs"][0] / "manifest.json").read_text())
        assert manifest["seed"] == 7
    page = (tmp_path / "runs" / "comparison.html").read_text()
    assert "netstorm:roots=2" in page


@pytest.mark.pure
def test_the_own_policy_keeps_its_options_where_a_file_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (place := tmp_path / "experiments").mkdir()
    new_policy("policy", tmp_path)
    monkeypatch.chdir(tmp_path)
    file = write(place, {**EXPERIMENT, "sync": {"policy": "../policy.py"}})
    own = Experiment.load(file).spec.sync.policy
    assert Variant.parse("./policy.py").overrides(own) == {}
    assert Variant.parse("./other.py").overrides(own)["sync.options"] == "{}"


@pytest.mark.pure
def test_a_path_of_a_topology_counts_as_it_is_written(tmp_path: Path) -> None:
    file = write(tmp_path)
    (tmp_path / "same.yaml").write_text((tmp_path / "topology.yaml").read_text())
    assert hashed(file, topology="same.yaml") != hashed(file)
