"""The runs that a sweep or a comparison asks for, each with its overrides and the key by which it is known."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import yaml

from testbed.emulation.containers.program_image import digests_of
from testbed.run.assignments import check_policy
from testbed.schemes import is_file
from testbed.spec.errors import Fault, SpecError
from testbed.spec.experiment import Experiment
from testbed.spec.load import holds, is_part, parse_yaml
from testbed.spec.sweep import Axis, as_yaml
from testbed.trace.text import hash_of_file


@dataclass(frozen=True)
class Point:
    """A combination of the axes' points."""

    #: The label on each axis, by the axis' name.
    labels: Mapping[str, str]
    #: The values of the experiment's fields that the point replaces.
    overrides: Mapping[str, str]
    #: The hash of the resulting experiment without its seed.
    hash: str

    @property
    def words(self) -> str:
        """The point in words: the label alone if there is one axis."""
        if len(self.labels) == 1:
            return next(iter(self.labels.values()))
        return ", ".join(f"{axis} {label}" for axis, label in self.labels.items())


@dataclass(frozen=True)
class PlannedRun:
    """One run at a point with a seed. Runs with the same seed are counted by `repeat`, from 1."""

    point: Point
    seed: int
    repeat: int = 1

    @property
    def key(self) -> str:
        """The run's key, the same in every session and on every machine: runs with one key measure the same."""
        known = [self.point.hash, dict(self.point.labels), self.seed, self.repeat]
        return hashlib.sha256(json.dumps(known, sort_keys=True).encode()).hexdigest()

    @property
    def overrides(self) -> dict[str, str]:
        """The values of the experiment's fields that the run replaces."""
        return {**self.point.overrides, "seed": str(self.seed)}

    @property
    def words(self) -> str:
        """The run in words."""
        parts = (self.point.words, f"seed {self.seed}", f"repeat {self.repeat}" if self.repeat > 1 else "")
        return ", ".join(part for part in parts if part)


def runs_at(points: Sequence[Point], seeds: Sequence[int], repeats: int = 1) -> list[PlannedRun]:
    """Return a run for each point, seed and repeat.

    The points of one seed follow each other, so that slow changes of the host's load affect all points alike.
    """
    return [PlannedRun(point, seed, repeat) for repeat in range(1, repeats + 1) for seed in seeds for point in points]


def combinations(axes: Mapping[str, Axis]) -> Iterator[tuple[dict[str, str], dict[str, str]]]:
    """Yield the labels and the overrides of each combination of the axes' points."""
    for chosen in product(*(points.items() for points in axes.values())):
        labels = {axis: label for axis, (label, _) in zip(axes, chosen, strict=True)}
        yield labels, {field: as_yaml(value) for _, fields in chosen for field, value in fields.items()}


def point_at(file: Path, labels: Mapping[str, str], overrides: Mapping[str, str]) -> Point:
    """Return a point of the experiment in a file. Raises SpecError if the resulting experiment is wrong."""
    experiment = Experiment.load(file, overrides)
    experiment.check_one_host()
    check_policy(experiment)
    return Point(labels, overrides, hash_of(experiment))


def hash_of(experiment: Experiment) -> str:
    """Return a hash of an experiment without its seed: of its values, and of the contents of the files that it names.

    The folders of the experiment and of plug-ins do not count; other paths count as they are written. Of a command's
    folder, only the files that the command names count.
    """
    hashed = hashlib.sha256(json.dumps(_values(experiment), sort_keys=True).encode())
    for file in (*experiment.files[1:], *program_files(experiment)):
        hashed.update(bytes.fromhex(hash_of_file(file)))
    program = experiment.spec.program
    if program is not None and (image := program.image_from(experiment.file.parent)):
        for each in digests_of(image):
            hashed.update(hashlib.sha256(each.encode()).digest())
    return hashed.hexdigest()


#: Fields of `train` that earlier versions lacked. They count only where they are given, so that a sweep of an earlier
#: version can be continued.
ADDED = ("workers", "on_host", "renew_image")


def _values(experiment: Experiment) -> dict[str, Any]:
    """Return the values that count. Paths of a scheme's and of policies' files are reduced to the files' names."""

    def name_of(plugin: str) -> str:
        return Path(plugin).name if is_file(plugin) else plugin

    values = experiment.spec.model_dump(mode="json", exclude={"seed"})
    values["train"] = {name: value for name, value in values["train"].items() if name not in ADDED or value}
    sync = values["sync"]
    sync |= {"strategy": name_of(sync["strategy"]), "policy": name_of(sync["policy"])}
    if isinstance(also := sync["options"].get("also"), list):
        sync["options"] |= {"also": [name_of(str(policy)) for policy in also]}
    return values


def program_files(experiment: Experiment) -> Iterator[Path]:
    """Yield the files that an experiment's command names, in the folder where the command starts.

    In containers that is their folder of files, and on the host the current folder.
    """
    program = experiment.spec.program
    if program is None:
        return
    files = Path.cwd() if program.on_host else (experiment.file.parent / program.files).resolve()
    words = {word for command in program.commands(experiment.topology).values() for word in command}
    for file in (files / word for word in sorted(words)):
        if holds(file.is_file) and file.resolve().is_relative_to(files):  # containers see no other files
            yield file


@dataclass(frozen=True, slots=True)
class Variant:
    """A policy to compare, as it was written: `netstorm`, or with options, `star:keys=one:placement=worst`.

    Without options, the experiment's own policy keeps those of its file, and any other policy has none.
    """

    text: str
    policy: str
    options: Mapping[str, Any] | None

    @classmethod
    def parse(cls, text: str) -> Variant:
        """Return the variant in a text. Raises ValueError if an option is not `name=value` with a YAML value."""
        policy, *pairs = text.split(":")
        options = {}
        for pair in pairs:
            name, equals, value = pair.partition("=")
            if not (name and equals):
                raise ValueError(
                    f"{text!r}: {pair!r} is not an option; write policy:option=value, as in netstorm:roots=1"
                )
            try:
                options[name] = parse_yaml(value)
            except yaml.YAMLError:
                raise ValueError(f"{text!r}: {value!r} is not a YAML value; write a number or a word") from None
        return cls(text, policy, options or None)

    @classmethod
    def parse_list(cls, text: str) -> list[Variant]:
        """Return the variants in a list such as `mst,auto:also=[mst,star]`. Raises ValueError as `parse` does."""
        parts, depth = [""], 0
        for character in text:
            depth = max(depth + (character in "[{") - (character in "]}"), 0)
            if character == "," and not depth:
                parts.append("")
            else:
                parts[-1] += character
        return [cls.parse(part) for part in parts]

    def overrides(self, own: str) -> dict[str, str]:
        """Return the values that the variant replaces in an experiment whose own policy is `own`."""
        if self.options is None and _whole(self.policy) == _whole(own):
            return {}
        return {"sync.policy": self.policy, "sync.options": as_yaml(dict(self.options or {}))}


def _whole(policy: str) -> str:
    """Return a policy's name, or the resolved path of its file."""
    return str(Path(policy).resolve()) if is_file(policy) else policy


def planned_comparison(
    file: Path, variants: Sequence[Variant], seeds: Sequence[int], overrides: Mapping[str, str]
) -> list[PlannedRun]:
    """Return a run for each variant and seed of an experiment, all with the same traces. The axis is `policy`.

    Raises:
        SpecError: The input is wrong, or `seeds` or each of the variants would replace an override.
    """
    if "seed" in overrides:
        raise SpecError(
            file, [Fault("seed", "--seeds sets the seed, as --set seed does", "the seeds in --seeds alone")]
        )
    spec, *_ = (Experiment.load(file, {**overrides, "seed": str(seed)}).spec for seed in seeds)
    if spec.program is not None:
        raise SpecError(file, [Fault("train.command", "has no policy to compare", "a `model`, or `testbed run`")])
    if len({variant.text for variant in variants}) < len(variants) or len(set(seeds)) < len(seeds):
        raise SpecError(file, [Fault("compare", "a policy or a seed is named twice", "each once")])
    own = [variant.overrides(spec.sync.policy) for variant in variants]
    replaced = [name for name in overrides if all(any(is_part(name, field) for field in each) for each in own)]
    if replaced:
        rule = "--policies sets the policy and its options, as --set does"
        raise SpecError(file, [Fault(name, rule, "both in --policies, `netstorm:roots=2`") for name in replaced])
    points = [
        point_at(file, {"policy": variant.text}, {**overrides, **each})
        for variant, each in zip(variants, own, strict=True)
    ]
    return runs_at(points, seeds)
