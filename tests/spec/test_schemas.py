"""The schemas that editors use: every file of ours fits them, and what the program refuses by its form does not."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator
from pydantic import BaseModel
from typer.main import get_command
from typer.testing import CliRunner

from testbed.cli import BAD_INPUT, app
from testbed.planning import named_policies
from testbed.spec.experiment import ExperimentFile
from testbed.spec.schemas import experiment_schema, topology_schema
from testbed.spec.topology import TopologyFile
from tests.spec.files import EXPERIMENT, TOPOLOGY, spoilt

pytestmark = pytest.mark.pure

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def experiment() -> Draft202012Validator:
    return Draft202012Validator(experiment_schema(named_policies()))


@pytest.fixture(scope="module")
def topology() -> Draft202012Validator:
    return Draft202012Validator(topology_schema())


def test_they_are_schemas() -> None:
    for schema in (experiment_schema(), topology_schema()):
        Draft202012Validator.check_schema(schema)
        assert "x-inside" not in json.dumps(schema)


def test_defaults_are_as_files_have_them() -> None:
    lan = topology_schema()["$defs"]["Lan"]["properties"]
    assert (lan["rate"]["default"], lan["delay"]["default"]) == ("1gbit", "100us")
    hop = next(
        each
        for each in experiment_schema()["properties"]["sync"]["anyOf"]
        if each["properties"]["strategy"].get("const") == "hop"
    )
    assert hop["properties"]["round_timeout"]["default"] == "2min"


@pytest.mark.parametrize("model", [ExperimentFile, TopologyFile])
def test_the_limit_of_a_quantity_is_said_in_its_unit(model: type[BaseModel]) -> None:
    """pydantic's own limits have no unit: `at least 0.5`."""
    for path, field in fields_of(model.model_json_schema()):
        assert "x-inside" not in field or not {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"} & set(
            field
        ), path


def test_every_field_has_a_description() -> None:
    described = {
        path
        for schema in (experiment_schema(named_policies()), topology_schema())
        for path, field in fields_of(schema)
        if "description" in field
    }
    assert ("$defs", "hop.Skip", "jump") in described
    assert ("$defs", "policy.cpn", "step_s") in described
    for schema in (experiment_schema(named_policies()), topology_schema()):
        assert {path for path, _ in fields_of(schema)} - described == set()


def test_every_option_of_trace_commands_has_a_help() -> None:
    whole: Any = get_command(app)
    trace = whole.commands["trace"]
    commands = [(name, inner) for name in ("import", "generate") for inner in trace.commands[name].commands.values()]
    assert len(commands) > 8
    missing = [(name, each.name, it.name) for name, each in commands for it in each.params if not it.help]
    assert missing == []


def fields_of(schema: Mapping[str, Any]) -> Iterator[tuple[tuple[str, ...], Mapping[str, Any]]]:
    """Yield the fields of a schema and its sections with their paths, without `sync`, whose schemes are yielded."""
    for name, field in schema.get("properties", {}).items():
        if name != "sync":
            yield (name,), field
    for section, inner in schema.get("$defs", {}).items():
        for path, field in fields_of(inner):
            yield ("$defs", section, *path), field
    for inner in schema.get("properties", {}).get("sync", {}).get("anyOf", ()):
        if (strategy := inner["properties"]["strategy"].get("const")) is not None:
            for path, field in fields_of(inner):
                yield ("sync", strategy, *path), field


def test_every_file_of_ours_fits(experiment: Draft202012Validator, topology: Draft202012Validator) -> None:
    for folder, schema in (("experiments", experiment), ("topologies", topology)):
        files = sorted((ROOT / folder).glob("*.yaml"))
        assert files
        faults = {
            file.name: [e.message for e in schema.iter_errors(yaml.safe_load(file.read_text()))] for file in files
        }
        assert not {name: found for name, found in faults.items() if found}


@pytest.mark.parametrize(
    "value",
    [
        spoilt(TOPOLOGY, "site", to={}),
        spoilt(TOPOLOGY, "links", 0, "rate", to=50),
        spoilt(TOPOLOGY, "links", 0, "rate", to="50 mph"),
        spoilt(TOPOLOGY, "links", 0, "loss", to={"p": "1%"}),
        spoilt(TOPOLOGY, "links", 0, "queue", to={"discipline": "fq"}),
        {**TOPOLOGY, "traffic": [{"on_off": {"rate": 20, "busy": "1s", "idle": "1s"}}]},
        spoilt(TOPOLOGY, "sites", "paris", "workers", to="two"),
    ],
)
def test_a_topology_that_is_wrong_does_not_fit(value: Mapping[str, Any], topology: Draft202012Validator) -> None:
    assert topology.is_valid(TOPOLOGY)
    assert not topology.is_valid(value)


@pytest.mark.parametrize(
    ("sync", "fits"),
    [
        ({}, True),
        ({"policy": "netstorm", "round_timeout": "2min"}, True),
        ({"strategy": "hop", "backup": 1}, True),
        ({"policy": "netstorm", "options": {"roots": 2}}, True),
        ({"policy": "./mine.py", "options": {"anything": 2}}, True),
        ({"policy": "mst", "options": {"roots": 2}}, False),
        ({"policy": "netstorm", "options": {"roots": "two"}}, False),
        ({"backup": 1}, False),
        ({"strategy": "none of ours"}, False),
        ({"round_timeout": 120}, False),
    ],
)
def test_what_stands_under_sync_follows_from_the_strategy(
    sync: Mapping[str, Any], fits: bool, experiment: Draft202012Validator
) -> None:
    assert experiment.is_valid(EXPERIMENT | {"sync": sync}) is fits


def test_the_command_prints_them() -> None:
    done = CliRunner().invoke(app, ["schema", "topology"])
    assert json.loads(done.stdout) == topology_schema()
    wrong = CliRunner().invoke(app, ["schema", "trace"])
    assert wrong.exit_code == BAD_INPUT
    assert "experiment" in wrong.stderr
