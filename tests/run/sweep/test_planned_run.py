"""Which runs are made at the points of an experiment, and when two of them are the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from testbed.run.sweep.planned_run import Point, combinations, hash_of, point_at, runs_at
from testbed.spec.experiment import Experiment
from tests.spec.files import EXPERIMENT, TOPOLOGY, spoilt

pytestmark = pytest.mark.pure

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


@given(st.integers(1, 4), st.sets(st.integers(0, 99), min_size=1, max_size=4), st.integers(1, 3))
def test_every_point_has_every_seed_so_often_and_no_run_is_twice(points: int, seeds: set[int], repeats: int) -> None:
    runs = runs_at([Point({"a": str(n)}, {}, "same") for n in range(points)], sorted(seeds), repeats)
    assert len({run.key for run in runs}) == len(runs) == points * len(seeds) * repeats
    neighbours = [run.point.labels["a"] for run in runs[:points]]
    assert neighbours == [str(n) for n in range(points)]


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


def test_the_seed_and_what_says_nothing_are_no_part_of_the_hash(tmp_path: Path) -> None:
    file = write(tmp_path)
    before = hashed(file)
    assert hashed(file, seed="9") == before
    file.write_text(f"# A comment.\n{file.read_text()}\nscale: 1.0  # as it is by default\n")
    assert hashed(file) == before


@pytest.mark.parametrize(("name", "old", "new"), [("trace.csv", "40", "41"), ("topology.yaml", "80mbit", "81mbit")])
def test_what_the_files_hold_is(name: str, old: str, new: str, tmp_path: Path) -> None:
    file = write(tmp_path)
    before = hashed(file)
    (tmp_path / name).write_text((tmp_path / name).read_text().replace(old, new))
    assert hashed(file) != before


@pytest.mark.parametrize("name", ["train.py", "requirements.txt"])
def test_so_are_a_command_s_script_and_image(name: str, tmp_path: Path) -> None:
    file = write(tmp_path, PROGRAM)
    before = hashed(file)
    (tmp_path / name).write_text("numpy\n")
    assert hashed(file) != before


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


def test_a_script_within_the_command_may_be_longer_than_a_file_s_name(tmp_path: Path) -> None:
    script = "print(1); " * 100
    file = write(tmp_path, spoilt(PROGRAM, "train", "command", to=["python", "-c", script]))
    assert hashed(file) != hashed(write(tmp_path, spoilt(PROGRAM, "train", "command", to=["python", "-c", "pass"])))


@pytest.mark.parametrize("word", ["/proc/self/mem", "../beside.py"])  # the first is a file that can't be read
def test_what_else_the_machine_has_is_no_part_of_a_command(word: str, tmp_path: Path) -> None:
    (place := tmp_path / "experiments").mkdir()
    beside = tmp_path / "beside.py"
    beside.write_text("print()\n")
    file = write(place, spoilt(PROGRAM, "train", "command", to=["python", word]))
    before = hashed(file)
    beside.write_text("exit()\n")
    assert hashed(file) == before


def test_where_the_files_lie_is_not(tmp_path: Path) -> None:
    (other := tmp_path / "elsewhere").mkdir()
    assert hashed(write(tmp_path)) == hashed(write(other))


def test_in_words_a_label_alone_needs_no_axis() -> None:
    one = Point({"sync.policy": "mst"}, {}, "")
    two = Point({"sync.policy": "mst", "scale": "0.5"}, {}, "")
    assert [run.words for run in runs_at([one, two], [3])] == ["mst, seed 3", "sync.policy mst, scale 0.5, seed 3"]
    assert runs_at([Point({}, {}, "")], [3], 2)[1].words == "seed 3, repeat 2"
