"""Whatever a file holds, what comes out is a value or a SpecError."""

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
from testbed.spec.load import read_yaml
from testbed.spec.topology import Topology
from tests.spec.files import EXPERIMENT, TOPOLOGY, write

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


def written(tmp_path: Path, *lines: str) -> Path:
    file = tmp_path / "net.yaml"
    file.write_text("\n".join(("name: net", *lines)) + "\n", encoding="utf-8")
    return file


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
    with pytest.raises(SpecError, match="duplicate name 'x'"):
        read_yaml(written(tmp_path, "a: &a {x: 1}", "b: {<<: *a, x: 2, x: 3}"))
    with pytest.raises(SpecError, match="duplicate name '<<'"):
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
        ("1.5e+3", 1500.0),
        ("~", None),
    ],
)
def test_a_key_is_as_it_is_written_and_a_value_what_people_read(word: str, value: object, tmp_path: Path) -> None:
    assert read_yaml(written(tmp_path, f"a: {{{word}: 1}}", f"b: {word}"))["a"] == {word: 1}
    found = read_yaml(written(tmp_path, f"b: {word}"))["b"]
    assert (found, type(found)) == (value, type(value))


@pytest.mark.parametrize("word", ["no", "Yes", "off", "0x1F", "1_0", "0b11", "~", "-.inf", "1.50"])
def test_an_error_quotes_what_stands_in_the_file_at_its_line(word: str, tmp_path: Path) -> None:
    file = written(
        tmp_path,
        "sites: {paris: {workers: 1}, tokyo: {workers: 1}}",
        "links:",
        f"  - between: [paris, {word}]",
        "    rate: 3",
    )
    with pytest.raises(SpecError) as caught:
        Topology.load(file)
    first = next(fault for fault in caught.value.faults if fault.field == "links.0.between.1")
    assert first.line == 4 and word in first.problem
    assert "(line 4)" in str(caught.value)


def test_a_field_that_the_command_line_sets_has_no_line(tmp_path: Path) -> None:
    file = write(tmp_path, experiment=yaml.safe_dump({**EXPERIMENT, "scale": 2, "seed": -1}))
    with pytest.raises(SpecError) as caught:
        Experiment.load(file, {"scale": "0"})
    lines = {fault.field: fault.line for fault in caught.value.faults}
    assert lines["scale"] is None
    assert file.read_text().splitlines()[(lines["seed"] or 0) - 1] == "seed: -1"
    with pytest.raises(SpecError, match=r"sync.policy: .* \(got no\)\n"):
        Experiment.load(write(tmp_path, experiment=yaml.safe_dump(EXPERIMENT)), {"sync.policy": "no"})


@pytest.mark.parametrize(
    ("changed", "field"),
    [
        ({"compute": {"step_time": "1s", "speeds": {"paris-w0": "none.csv"}}}, "compute.speeds.paris-w0"),
        ({"events": [{"at": "1s", "kill": "nobody"}]}, "events.0.kill"),
    ],
)
def test_what_is_wrong_beside_other_files_has_its_line_too(changed: dict[str, Any], field: str, tmp_path: Path) -> None:
    file = write(tmp_path, experiment=yaml.safe_dump(EXPERIMENT | changed))
    with pytest.raises(SpecError) as caught:
        Experiment.load(file)
    (line,) = {fault.line for fault in caught.value.faults if fault.field == field}
    assert line is not None
    assert f"{field.rpartition('.')[2]}:" in file.read_text().splitlines()[line - 1]


@pytest.mark.parametrize(
    ("train", "fields", "remedy"),
    [
        ({"command": 5}, {"train.command"}, "a list, or a mapping"),
        ({"command": [3, "a"]}, {"train.command.0"}, "a word"),
        ({"command": {"paris-w0": 3}}, {"train.command.paris-w0"}, "a list"),
        ({"command": {"paris-w0": ["a", 3]}}, {"train.command.paris-w0.1"}, "a word"),
        (
            {"command": {"paris-w0": ["a", 3], "tokyo-w0": 5}},
            {"train.command.paris-w0.1", "train.command.tokyo-w0"},
            "a ",
        ),
        ({"command": []}, {"train.command"}, "at least"),
        ([3], {"hosts.0"}, "a word"),
        ({"paris": 3}, {"hosts.paris"}, "a word"),
        ([], {"hosts"}, "at least 1 entry"),
    ],
)
def test_a_union_s_branches_are_not_shown(train: Any, fields: set[str], remedy: str, tmp_path: Path) -> None:
    changed = {next(iter(fields)).partition(".")[0]: train}
    with pytest.raises(SpecError) as caught:
        Experiment.load(write(tmp_path, experiment=yaml.safe_dump(EXPERIMENT | changed)))
    assert {fault.field for fault in caught.value.faults} == fields
    assert all(remedy in fault.remedy and fault.line for fault in caught.value.faults)


@pytest.mark.parametrize("name", ["union", "chain", "list", "function-a", "nullable", "str"])
def test_a_field_is_named_whatever_pydantic_calls_its_branches(name: str, tmp_path: Path) -> None:
    with pytest.raises(SpecError) as caught:
        Topology.load(written(tmp_path, "sites:", f"  {name}: {{workers: x}}"))
    assert [(fault.field, fault.line) for fault in caught.value.faults] == [(f"sites.{name}.workers", 3)]


def test_a_value_that_contains_itself_is_refused(tmp_path: Path) -> None:
    text = yaml.safe_dump(EXPERIMENT) + "compute: &a {step_time: *a}\nevents: &e [*e]\n"
    with pytest.raises(SpecError):
        Experiment.load(write(tmp_path, experiment=text))


def test_every_fault_of_a_file_is_named_at_once(tmp_path: Path) -> None:
    with pytest.raises(SpecError) as caught:
        Experiment.load(write(tmp_path, experiment=EXPERIMENT | {"seed": -1, "scale": 0}))
    assert {fault.field for fault in caught.value.faults} == {"seed", "scale"}
    assert str(caught.value).count(str(tmp_path / "experiment.yaml")) == 2
