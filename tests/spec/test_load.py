"""Any file becomes a value or a SpecError."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from testbed.spec.errors import SpecError
from testbed.spec.experiment import Experiment
from testbed.spec.load import read_kind, read_yaml
from testbed.spec.topology import Topology
from tests.spec.files import EXPERIMENT, TOPOLOGY, write, written

pytestmark = pytest.mark.pure

fuzz = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=150)

WORDS = st.sampled_from(
    ["paris", "tokyo", "50mbit", "10ms", "0.1%", "mst", "cnn", "name", "sites", "links", "..", "1e999", "\0"]
)
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20) | WORDS
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(WORDS | st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)


def places(value: Any, path: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    """The path of everything inside a value."""
    found = [path] if path else []
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in children:
        found += places(inner, (*path, key))
    return found


@st.composite
def disturbed(draw: st.DrawFn, value: dict[str, Any]) -> dict[str, Any]:
    """The value with one or two of its parts replaced, or a field added."""
    changed = copy.deepcopy(value)
    for _ in range(draw(st.integers(1, 2))):
        *path, last = draw(st.sampled_from(places(changed)))
        inner: Any = changed
        for key in path:
            inner = inner[key]
        if isinstance(inner, dict) and draw(st.booleans()):
            last = draw(WORDS)
        inner[last] = draw(VALUES)
    return changed


def topology_of(value: Any, folder: Path) -> None:
    """SpecError is an answer; anything else that is raised fails the test."""
    try:
        Topology.from_value(value, folder / "topology.yaml").scaled(0.5)
    except SpecError as error:
        assert error.faults
        assert all(fault.field and fault.problem and fault.remedy for fault in error.faults)


@fuzz
@given(value=disturbed(TOPOLOGY))
def test_a_disturbed_topology_loads_or_is_refused(value: Any, tmp_path: Path) -> None:
    topology_of(value, tmp_path)


@fuzz
@given(value=VALUES)
def test_any_value_for_a_topology_is_refused(value: Any, tmp_path: Path) -> None:
    topology_of(value, tmp_path)


@fuzz
@given(value=disturbed(EXPERIMENT))
def test_a_disturbed_experiment_loads_or_is_refused(value: Any, tmp_path: Path) -> None:
    try:
        text = yaml.safe_dump(value)
    except ValueError:
        return  # a number too long to be written
    file = write(tmp_path, experiment=text.encode("utf-8", "replace").decode())
    try:
        Experiment.load(file)
    except SpecError as error:
        assert all(fault.field and fault.problem and fault.remedy for fault in error.faults)


@fuzz
@given(text=st.text(st.characters(exclude_categories=["Cs"]) | st.sampled_from("{}[]:-!&*?|><'\"\n #%"), max_size=60))
def test_any_text_is_a_mapping_or_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "file.yaml").write_text(text, encoding="utf-8")
    try:
        assert isinstance(read_yaml(tmp_path / "file.yaml"), dict)
    except SpecError as error:
        assert str(error).startswith(str(tmp_path))


@fuzz
@given(content=st.binary(max_size=60))
def test_any_bytes_are_a_mapping_or_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "file.yaml").write_bytes(content)
    try:
        assert isinstance(read_yaml(tmp_path / "file.yaml"), dict)
    except SpecError as error:
        assert error.faults


@pytest.mark.parametrize(
    "text",
    [
        r'a: "\ud800"',
        r'"\ud800": a',
        'a: !!int ""',
        'a: !!float ""',
        "a: !!bool maybe",
        "a: !!map [b]",
        "a: !!set b",
        "a: !!timestamp soon",
        "a: 2001-99-99",
        "a: !unknown b",
        "a: !!python/object:os.system b",
        "{{a: b}: c}",
        "a: {<<: 3}",
        "a: " + "[" * 5000,
        "a: " + "1:" * 300 + "1.5",
        "a: " + "9" * 5000,
        "name: 0x" + "f" * 5000,
        "0x" + "f" * 5000 + ": 3",
    ],
)
def test_what_yaml_itself_stumbles_over_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "file.yaml").write_text(text)
    with pytest.raises(SpecError):
        Topology.load(tmp_path / "file.yaml")


def test_merge_keys_bring_what_a_mapping_does_not_have(tmp_path: Path) -> None:
    lines = (
        "sites:",
        "  paris: &small {workers: 1, cpus: 0.5}",
        "  tokyo: &fast {<<: *small, speed: 2.0}",
        "  lima: {<<: [*fast, *small], workers: 2}",
        "links:",
        "  - &slow {between: [paris, tokyo], rate: 5mbit, delay: 110ms}",
        "  - {<<: *slow, between: [paris, lima]}",
    )
    topology = Topology.load(written(tmp_path, *lines))
    assert [(site.workers, site.cpus, site.speed) for site in topology.sites.values()] == [
        (1, 0.5, 1.0),
        (1, 0.5, 2.0),
        (2, 0.5, 2.0),
    ]
    assert topology.links["lima->paris"].state.rate_bps == 5e6


def test_a_key_that_a_merge_overrides_is_no_duplicate_and_a_duplicate_is_one(tmp_path: Path) -> None:
    value = read_yaml(written(tmp_path, "a: &a {x: 1, y: 2}", "b: &b {<<: *a, x: 3}", "c: {<<: *b, y: 4}", "d: [*b]"))
    assert value["c"] == {"x": 3, "y": 4}
    assert value["d"] == [{"x": 3, "y": 2}]
    with pytest.raises(SpecError, match="'x'"):
        read_yaml(written(tmp_path, "a: &a {x: 1}", "b: {<<: *a, x: 2, x: 3}"))
    with pytest.raises(SpecError, match="'<<'"):
        read_yaml(written(tmp_path, "a: &a {x: 1}", "b: {<<: *a, <<: *a}"))


#: Words that YAML 1.1 takes for something else than people do, and what they are as a key and as a value.
@pytest.mark.parametrize(
    ("word", "value"),
    [
        ("no", False),
        ("On", True),
        ("true", True),
        ("1:30", "1:30"),
        ("010", "010"),
        ("1:30:00.5", "1:30:00.5"),
        ("2024-01-01", "2024-01-01"),
        ("10", 10),
        ("0x1F", 31),
        ("1_000", 1000),
        ("-1.5", -1.5),
        ("-.12", -0.12),
        ("+.5e+1", 5.0),
        ("1.5e+3", 1500.0),
        ("~", None),
    ],
)
def test_a_key_is_as_it_is_written_and_a_value_what_people_read(word: str, value: object, tmp_path: Path) -> None:
    assert read_yaml(written(tmp_path, f"a: {{{word}: 1}}", f"b: {word}"))["a"] == {word: 1}
    found = read_yaml(written(tmp_path, f"b: {word}"))["b"]
    assert (found, type(found)) == (value, type(value))


@pytest.mark.parametrize("name", ["x" * 300, "x" * 300 + ".csv", "a/" * 3000])
def test_a_path_that_no_file_can_have_is_refused(name: str) -> None:
    with pytest.raises(SpecError) as caught:
        read_kind(Path(name), "an experiment")
    assert caught.value.faults[0].field == "file"


def test_a_value_that_contains_itself_is_refused(tmp_path: Path) -> None:
    text = yaml.safe_dump(EXPERIMENT) + "compute: &a {step_time: *a}\nevents: &e [*e]\n"
    with pytest.raises(SpecError):
        Experiment.load(write(tmp_path, experiment=text))
