"""Compares runs of one experiment at several points: the figures of each point, and the time to a common loss."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from statistics import fmean
from typing import Any

import msgspec

from testbed.run.conclusion.baseline import NoSummary, read_summary
from testbed.run.execute import Executed
from testbed.run.sweep.planned_run import PlannedRun, Point
from testbed.schema import decode_lines
from testbed.spec.sweep import MOST_RUNS
from testbed.telemetry.averages import median_of_known
from testbed.telemetry.store import read_json

#: The figures of a comparison, with their paths in a run's summary.
FIGURES = {
    "seconds_per_round_p50": ("sync", "seconds_per_round", "p50"),
    "ratio_to_lower_bound": ("sync", "ratio_to_lower_bound"),
    "ratio_to_bound": ("sync", "ratio_to_bound"),
    "final_accuracy": ("training", "final_accuracy"),
    "wall_seconds": ("training", "wall_seconds"),
    "wan_bytes": ("sync", "wan_bytes"),
}

#: The figure that depends on all runs: the seconds until a run reached the loss that all runs reached.
TO_LOSS = "seconds_to_loss"


@dataclass(frozen=True)
class Comparison:
    """Planned runs, and the results of those that were made."""

    planned: Sequence[PlannedRun]
    #: The results, by the runs' keys.
    made: Mapping[str, Executed]

    @property
    def finished(self) -> bool:
        """True if every planned run finished."""
        return all(run.key in self.made and self.made[run.key].finished for run in self.planned)

    @property
    def trusted(self) -> bool:
        """True if the verdict of every run that was made is `trusted`."""
        return all(run.verdict == "trusted" for run in self.made.values())

    @property
    def points(self) -> list[Point]:
        """The points in order, each once."""
        return list({id(run.point): run.point for run in self.planned}.values())

    def at(self, point: Point) -> list[Executed]:
        """Return the runs that were made at a point, in order."""
        return [self.made[run.key] for run in self.planned if run.point is point and run.key in self.made]

    @cached_property
    def loss(self) -> float | None:
        """The lowest loss that all finished runs reached, or None if no run has a loss."""
        return common_loss(self._curves.values())

    @cached_property
    def _curves(self) -> dict[str, Curve]:
        return {key: read_curve(run.directory) for key, run in self.made.items() if run.finished}

    def seconds_to_loss(self, run: PlannedRun) -> float | None:
        """Return the seconds of training until a run reached `loss`, or None if it did not or was not made."""
        return seconds_to(self.loss, self._curves.get(run.key, ()))

    def outcome(self, point: Point) -> dict[str, Any]:
        """Return a point's `figures`, with the seconds until its runs reached `loss`."""
        found = self.figures(point)
        finished = [run for run in self.planned if run.point is point and run.key in self._curves]
        found["spread"][TO_LOSS] = [self.seconds_to_loss(run) for run in finished]
        return {**found, TO_LOSS: median_of_known(found["spread"][TO_LOSS]), "loss": self.loss}

    def figures(self, point: Point) -> dict[str, Any]:
        """Return the medians over a point's finished runs; `spread` has the values of every run.

        A run whose summary was removed or damaged meanwhile has no values.
        """
        runs = self.at(point)
        each = []
        for run in runs:
            if run.finished:
                with suppress(NoSummary):
                    each.append(figures_of(run))
        spread = {name: [figures[name] for figures in each] for name in FIGURES}
        medians = {name: median_of_known(values) for name, values in spread.items()}
        verdicts = [run.verdict if run.finished else "failed" for run in runs]
        return {**medians, "verdicts": verdicts, "spread": spread, "runs": [str(run.directory) for run in runs]}


def figures_of(run: Executed) -> dict[str, float | None]:
    """Return the figures of a finished run. Raises NoSummary if its summary was replaced or damaged meanwhile."""
    return figures_in(read_summary(run.directory))


def figures_in(summary: Mapping[str, Any]) -> dict[str, float | None]:
    """Return the figures in a summary; None for a figure that it lacks."""
    return {name: _at(summary, path) for name, path in FIGURES.items()}


def _at(summary: Mapping[str, Any], path: Sequence[str]) -> float | None:
    value: Any = summary
    for name in path:
        value = value.get(name) if isinstance(value, Mapping) else None
    return None if value is None else float(value)


#: The rounds over which the loss is averaged, since a single round's is noisy: in the quickstart, whose rounds see 256
#: images, it differs from this mean by a quarter at the median.
ROUNDS = 10

#: (seconds since training began, loss) of each round, in order.
Curve = Sequence[tuple[float, float]]


class LossLine(msgspec.Struct, gc=False):
    """The fields of a line of `rounds.jsonl` from which the loss over time is read."""

    round: int
    finished_s: float
    metrics: dict[str, float | None] = {}


@lru_cache(maxsize=MOST_RUNS)
def read_curve(run: Path) -> Curve:
    """Return the mean loss of the members in each round of an ended run, from its directory; empty without losses.

    Lines that are cut short or damaged are left out, as in reports.
    """
    try:
        began = float(read_json(run / "manifest.json")["training_started_s"])
        lines = decode_lines(msgspec.json.Decoder(LossLine), (run / "rounds.jsonl").read_bytes())
    except (OSError, ValueError, KeyError, TypeError, OverflowError):
        return ()
    rounds: dict[int, list[tuple[float, float]]] = {}
    for line in lines:
        if (loss := line.metrics.get("loss")) is not None:
            rounds.setdefault(line.round, []).append((line.finished_s - began, loss))
    return [(max(at_s for at_s, _ in its), fmean(loss for _, loss in its)) for _, its in sorted(rounds.items())]


def common_loss(curves: Iterable[Curve]) -> float | None:
    """Return the lowest loss that all curves reached, leaving out empty ones; None if all are empty."""
    return max((min(loss for _, loss in _smoothed(curve)) for curve in curves if curve), default=None)


def seconds_to(loss: float | None, curve: Curve) -> float | None:
    """Return the seconds until a curve, smoothed over ROUNDS rounds, first reached a loss; None if it never did."""
    return next((at_s for at_s, its in _smoothed(curve) if loss is not None and its <= loss), None)


def _smoothed(curve: Curve) -> list[tuple[float, float]]:
    """Return the running mean of a curve over ROUNDS rounds, over fewer at its beginning."""
    last: deque[float] = deque(maxlen=ROUNDS)
    found = []
    for at_s, loss in curve:
        last.append(loss)
        found.append((at_s, fmean(last)))
    return found
