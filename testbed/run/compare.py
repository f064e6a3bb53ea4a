"""`testbed compare`, whole: one experiment under several policies, each with the same seeds and traces."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import yaml

from testbed.run.assignments import check_policy
from testbed.run.display import Display
from testbed.run.execute import Executed, Publish, execute
from testbed.run.time_left import in_words, time_left
from testbed.spec.errors import Fault, SpecError
from testbed.spec.experiment import Experiment
from testbed.spec.load import parse_yaml

#: Makes the page of several runs; where it lies.
PublishComparison = Callable[[Sequence[Path], Path], Path]


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
        return {"sync.policy": self.policy, "sync.options": json.dumps(self.options or {})}


@dataclass(frozen=True, slots=True)
class Compared:
    """All runs of each variant, by its text, in the order of the seeds; and the page about them."""

    runs: Mapping[str, tuple[Executed, ...]]
    page: Path | None

    @property
    def finished(self) -> bool:
        """Whether every run came to its end."""
        return all(run.finished for runs in self.runs.values() for run in runs)

    @property
    def trusted(self) -> bool:
        """Whether every run's verdict is `trusted`."""
        return all(run.verdict == "trusted" for runs in self.runs.values() for run in runs)

    def figures(self) -> dict[str, dict[str, Any]]:
        """By variant: medians over its finished runs, each with what it was in every run under `spread`."""
        return {text: _figures(runs) for text, runs in self.runs.items()}


def compare(
    file: Path,
    variants: Sequence[Variant],
    seeds: Sequence[int],
    overrides: Mapping[str, str],
    strict: bool,
    display: Display,
    publish: Publish,
    publish_comparison: PublishComparison,
) -> Compared:
    """Run the experiment once for each variant and seed; seed by seed, so that the host's moods meet all alike.

    SpecError for any bad input, before the first run; CannotRun when this machine can't. A run that fails is
    counted as such, and the others go on.
    """
    spec = Experiment.load(file, overrides).spec
    if spec.program is not None:
        raise SpecError(file, [Fault("train.command", "goes by no policy", "a `model`, or `testbed run`")])
    own = spec.sync.policy
    changes = {
        (variant.text, seed): {**overrides, **variant.overrides(own), "seed": str(seed)}
        for seed in seeds
        for variant in variants
    }
    if len(changes) < len(seeds) * len(variants):
        raise SpecError(file, [Fault("compare", "a policy or a seed is named twice", "each once")])
    for change in changes.values():
        check_policy(Experiment.load(file, change))
    runs: dict[str, tuple[Executed, ...]] = {variant.text: () for variant in variants}
    began = time.monotonic()
    for number, ((text, seed), change) in enumerate(changes.items(), start=1):
        left = in_words(time_left(time.monotonic() - began, number - 1, len(changes)))
        display.say(f"[bold]{number} of {len(changes)}[/]: {text}, seed {seed}{left and f'; {left}'}")
        runs[text] += (execute(file, change, strict, publish, display),)
    finished = [run.directory for each in runs.values() for run in each if run.finished]
    page = publish_comparison(finished, finished[-1].parent / "comparison.html") if finished else None
    return Compared(runs, page)


#: Where the figures of a comparison stand in a run's summary.
FIGURES = {
    "seconds_per_round_p50": ("sync", "seconds_per_round", "p50"),
    "ratio_to_lower_bound": ("sync", "ratio_to_lower_bound"),
    "ratio_to_bound": ("sync", "ratio_to_bound"),
    "final_accuracy": ("training", "final_accuracy"),
    "wall_seconds": ("training", "wall_seconds"),
    "wan_bytes": ("sync", "wan_bytes"),
}


def _figures(runs: Sequence[Executed]) -> dict[str, Any]:
    summaries = [json.loads((run.directory / "summary.json").read_text()) for run in runs if run.finished]
    spread = {name: [_at(summary, path) for summary in summaries] for name, path in FIGURES.items()}
    medians = {name: _median(values) for name, values in spread.items()}
    verdicts = [run.verdict if run.finished else "failed" for run in runs]
    return {**medians, "verdicts": verdicts, "spread": spread, "runs": [str(run.directory) for run in runs]}


def _median(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None


def _at(summary: Mapping[str, Any], path: Sequence[str]) -> float | None:
    value: Any = summary
    for name in path:
        value = value[name]
    return None if value is None else float(value)
