"""Small valid files to spoil, one thing at a time."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import yaml

from testbed.spec.errors import SpecError
from testbed.spec.experiment import Experiment

TOPOLOGY: dict[str, Any] = {
    "name": "three",
    "sites": {"paris": {"workers": 2}, "tokyo": {"workers": 1}, "dallas": {"workers": 1}},
    "links": [
        {"between": ["paris", "tokyo"], "rate": "50mbit", "delay": "110ms"},
        {"between": ["paris", "dallas"], "rate": "80mbit", "rtt": "110ms"},
    ],
}
EXPERIMENT: dict[str, Any] = {
    "name": "small",
    "topology": "topology.yaml",
    "train": {"model": "cnn", "rounds": 3},
    "sync": {"policy": "mst"},
}


def spoilt(value: dict[str, Any], *path: str | int, to: Any) -> dict[str, Any]:
    """A copy of the value in which what lies at the path is something else; `...` takes it away."""
    changed = copy.deepcopy(value)
    inner: Any = changed
    for key in path[:-1]:
        inner = inner[key]
    if to is ...:
        del inner[path[-1]]
    elif isinstance(inner, list) and path[-1] == len(inner):
        inner.append(to)
    else:
        inner[path[-1]] = to
    return changed


def write(folder: Path, topology: Any = TOPOLOGY, experiment: Any = EXPERIMENT) -> Path:
    """The files in a folder: values as YAML, strings as they are; the experiment's path."""
    for name, value in (("topology", topology), ("experiment", experiment)):
        text = value if isinstance(value, str) else yaml.safe_dump(value, sort_keys=False)
        (folder / f"{name}.yaml").write_text(text, encoding="utf-8")
    return folder / "experiment.yaml"


def refused(folder: Path, experiment: Any, overrides: dict[str, str] | None = None) -> SpecError:
    """Return the error of an experiment's file that is wrong."""
    with pytest.raises(SpecError) as caught:
        Experiment.load(write(folder, experiment=experiment), overrides)
    return caught.value


def written(folder: Path, *lines: str) -> Path:
    """Write a file of these lines, and return its path."""
    file = folder / "net.yaml"
    file.write_text("\n".join(("name: net", *lines)) + "\n", encoding="utf-8")
    return file
