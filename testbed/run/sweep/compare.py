"""What `testbed compare` runs: one experiment under several policies, each with the same seeds and traces."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from testbed.run.sweep.planned_run import PlannedRun, point_at, runs_at
from testbed.spec.errors import Fault, SpecError
from testbed.spec.experiment import Experiment
from testbed.spec.load import parse_yaml
from testbed.spec.sweep import as_yaml


@dataclass(frozen=True, slots=True)
class Variant:
    """A policy to compare, as it was asked for: `netstorm`, or with options, `star:keys=one:placement=worst`.

    Without `options` the experiment's own policy keeps those of its file, and any other has none.
    """

    text: str
    policy: str
    options: Mapping[str, Any] | None

    @classmethod
    def parse(cls, text: str) -> Variant:
        """The variant in a text; ValueError when an option is not `name=value` with a YAML value."""
        policy, *pairs = text.split(":")
        options = {}
        for pair in pairs:
            name, equals, value = pair.partition("=")
            if not (name and equals):
                raise ValueError(f"{text!r}: {pair!r} is no option; write policy:option=value, as in netstorm:roots=1")
            try:
                options[name] = parse_yaml(value)
            except yaml.YAMLError:
                raise ValueError(f"{text!r}: {value!r} is not a YAML value; write a number or a word") from None
        return cls(text, policy, options or None)

    def overrides(self, own: str) -> dict[str, str]:
        """What of the experiment, whose own policy is `own`, this replaces."""
        if self.options is None and self.policy == own:
            return {}
        return {"sync.policy": self.policy, "sync.options": as_yaml(dict(self.options or {}))}


def planned_comparison(
    file: Path, variants: Sequence[Variant], seeds: Sequence[int], overrides: Mapping[str, str]
) -> list[PlannedRun]:
    """The experiment once for each variant and seed, every variant with the same traces. The axis is `policy`.

    SpecError for any bad input.
    """
    spec, *_ = (Experiment.load(file, {**overrides, "seed": str(seed)}).spec for seed in seeds)
    if spec.program is not None:
        raise SpecError(file, [Fault("train.command", "goes by no policy", "a `model`, or `testbed run`")])
    if len({variant.text for variant in variants}) < len(variants) or len(set(seeds)) < len(seeds):
        raise SpecError(file, [Fault("compare", "a policy or a seed is named twice", "each once")])
    points = [
        point_at(file, {"policy": variant.text}, {**overrides, **variant.overrides(spec.sync.policy)})
        for variant in variants
    ]
    return runs_at(points, seeds)
