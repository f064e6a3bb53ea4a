"""Errors name the field as the file has it, its line, and what to write instead."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from testbed.spec.errors import SpecError
from testbed.spec.topology import Topology
from tests.spec.files import EXPERIMENT, refused, written

pytestmark = pytest.mark.pure


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
    error = refused(tmp_path, EXPERIMENT | {"scale": 2, "seed": -1}, {"scale": "0"})
    lines = {fault.field: fault.line for fault in error.faults}
    assert lines["scale"] is None
    assert error.file.read_text().splitlines()[(lines["seed"] or 0) - 1] == "seed: -1"
    assert re.search(r"sync.policy: .* \(got no\)\n", str(refused(tmp_path, EXPERIMENT, {"sync.policy": "no"})))


@pytest.mark.parametrize(
    ("changed", "field"),
    [
        ({"compute": {"step_time": "1s", "speeds": {"paris-w0": "none.csv"}}}, "compute.speeds.paris-w0"),
        ({"events": [{"at": "1s", "kill": "nobody"}]}, "events.0.kill"),
    ],
)
def test_what_is_wrong_beside_other_files_has_its_line_too(changed: dict[str, Any], field: str, tmp_path: Path) -> None:
    error = refused(tmp_path, EXPERIMENT | changed)
    (line,) = {fault.line for fault in error.faults if fault.field == field}
    assert line is not None
    assert f"{field.rpartition('.')[2]}:" in error.file.read_text().splitlines()[line - 1]


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
    error = refused(tmp_path, EXPERIMENT | changed)
    assert set(error.fields) == fields
    assert all(remedy in fault.remedy and fault.line for fault in error.faults)


@pytest.mark.parametrize("name", ["union", "chain", "list", "function-a", "nullable", "str"])
def test_a_field_is_named_whatever_pydantic_calls_its_branches(name: str, tmp_path: Path) -> None:
    with pytest.raises(SpecError) as caught:
        Topology.load(written(tmp_path, "sites:", f"  {name}: {{workers: x}}"))
    assert [(fault.field, fault.line) for fault in caught.value.faults] == [(f"sites.{name}.workers", 3)]


def test_every_fault_of_a_file_is_named_at_once(tmp_path: Path) -> None:
    error = refused(tmp_path, EXPERIMENT | {"seed": -1, "scale": 0})
    assert set(error.fields) == {"seed", "scale"}
    assert str(error).count(str(tmp_path / "experiment.yaml")) == 2
