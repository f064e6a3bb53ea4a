"""Sweep files: an experiment, those of its fields that vary, and how often each combination is run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import permutations
from math import inf, prod
from pathlib import Path
from typing import Annotated, Any, Self

import yaml
from pydantic import BeforeValidator, Field, model_validator

from testbed.resources import preset_or_file
from testbed.spec.load import Dumper, holds, is_part, read_kind
from testbed.spec.model import Strict, misfit, validate
from testbed.spec.sync import with_plugin_files

#: The most runs of a sweep: at a minute each, 10,000 take a week.
MOST_RUNS = 10_000

#: Label of a point → the fields of the experiment that the point sets, with their values.
Axis = dict[str, dict[str, Any]]


def read_axes(value: Any) -> Any:
    """Return a file's `axes`, with each plain value in a list replaced by a point that sets the axis' field to it."""
    if not isinstance(value, Mapping):
        raise ValueError("is not a mapping | `sync.policy: [mst, netstorm]`, a line for each axis")
    return {name: _points(name, points) for name, points in value.items()}


def _points(axis: Any, value: Any) -> Any:
    named = "or labels with the fields that each sets, `{one: {sync.options: {roots: 1}}, …}`"
    if not isinstance(value, list | Mapping) or not value:
        rule = "the axis is neither a list of values nor a mapping"
        raise misfit(str(axis), rule, f"the field's values, `[0.5, 1]`, {named}")
    if isinstance(value, Mapping):
        for label, fields in value.items():
            if not isinstance(fields, Mapping):
                raise misfit(f"{axis}.{label}", "the point sets no fields", "a mapping, `{sync.policy: netstorm}`")
        return value
    points = {each if isinstance(each, str) else as_yaml(each): {axis: each} for each in value}
    if len(points) < len(value):
        raise misfit(str(axis), "the axis has a value twice", "each once; `repeats: 2` runs all of them twice")
    return points


def as_yaml(value: Any) -> str:
    r"""Return a value as text that YAML reads as the same value, for `--set`.

    Note:
        JSON differs: its 1e-05 is a text in YAML 1.1. PyYAML's text with `allow_unicode` differs too: its key "\x85" is
        read as " ".
    """
    text = yaml.dump(value, Dumper=Dumper, default_flow_style=True, width=inf)
    return text.removesuffix("\n").removesuffix("\n...")


Axes = Annotated[dict[str, Axis], BeforeValidator(read_axes)]


class SweepFile(Strict):
    """Runs of one experiment: each combination of the axes' points, with each seed, `repeats` times."""

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9-]{0,40}$")
    """The sweep's name."""
    experiment: str
    """The experiment's file, whose path is relative to the sweep's folder, or a preset's name."""
    axes: Axes = Field(default_factory=dict)
    """The fields that vary: a field's dotted path with a list of values, or a name with labelled points, each of which
    sets several fields."""
    seeds: list[Annotated[int, Field(ge=0, lt=2**32)]] = Field(default=[1], min_length=1)
    """The seeds of the runs."""
    repeats: int = Field(default=1, ge=1, le=MOST_RUNS)
    """The number of runs of each combination with each seed."""

    @model_validator(mode="after")
    def _each_run_once(self) -> Self:
        if len(set(self.seeds)) < len(self.seeds):
            raise misfit("seeds", "the list has a seed twice", "each once; `repeats: 2` runs all of them twice")
        owners: dict[str, str] = {}
        for axis, points in self.axes.items():
            for fields in points.values():
                for field, whole in permutations(fields, 2):
                    if is_part(field, whole):
                        raise misfit(f"axes.{axis}", f"a point sets {field} and {whole}, its whole", "one of the two")
            for field in dict.fromkeys(field for fields in points.values() for field in fields):
                if field == "seed":
                    raise misfit(f"axes.{axis}", "the axis sets the seed", "`seeds: [1, 2, 3]` beside the axes")
                for other, owner in owners.items():
                    if owner != axis and (is_part(field, other) or is_part(other, field)):
                        rule = f"the axis sets {field}, and {owner} sets {other}"
                        raise misfit(f"axes.{axis}", rule, "one axis for each field")
                owners[field] = axis
        if (count := self.points * len(self.seeds) * self.repeats) > MOST_RUNS:
            raise misfit("axes", f"the sweep has {count} runs, with its seeds and repeats", f"at most {MOST_RUNS}")
        return self

    @property
    def points(self) -> int:
        """The number of combinations of the axes' points."""
        return prod(len(points) for points in self.axes.values())


@dataclass(frozen=True)
class Sweep:
    """A validated sweep file."""

    spec: SweepFile
    file: Path

    @classmethod
    def load(cls, file: Path) -> Sweep:
        """Return the sweep in a file, without reading its experiment. SpecError: the file is wrong."""
        return cls(validate(SweepFile, read_kind(file, "a sweep"), file), file)

    @property
    def experiment(self) -> Path:
        """The experiment's file, or that of a preset of its name."""
        return preset_or_file("experiment", Path(self.spec.experiment), self.file.parent)

    @property
    def axes(self) -> dict[str, Axis]:
        """The axes of the file, with absolute paths of the schemes' and policies' files that their points name.

        A path begins at the sweep's folder. If no such file is there, it begins at the current folder, as all these
        paths did in earlier versions.
        """
        return {
            axis: {
                label: {field: with_plugin_files(field, value, self._plugin_file) for field, value in fields.items()}
                for label, fields in points.items()
            }
            for axis, points in self.spec.axes.items()
        }

    def _plugin_file(self, _: str, name: str) -> Path:
        beside, here = self.file.parent / name, Path(name)
        return here if holds(here.is_file) and not holds(beside.is_file) else beside
