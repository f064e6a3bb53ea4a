"""The page of several runs side by side: their key figures, by run and by policy, and what differs between them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from testbed.report import tables, text
from testbed.report.figures.canvas import Drawing
from testbed.report.figures.comparison import draw_progress, draw_spread
from testbed.report.figures.network import draw_network
from testbed.report.figures.rounds import draw_rounds
from testbed.report.figures.waiting import draw_time_spent
from testbed.report.opening import KeyFigure, badge, comparison_opening, key_figures, median_round_s
from testbed.report.record import RunRecord
from testbed.report.replanning import score
from testbed.report.score import Score
from testbed.report.tables import Cell, Table, table
from testbed.run.sweep.comparison import TO_LOSS, Curve, common_loss, figures_in, seconds_to


def comparison_values(records: Sequence[RunRecord]) -> dict[str, Any]:
    """Return the values of the comparison's template."""
    runs = dict(zip(labels(records), records, strict=True))
    facts = {label: tables.facts(record) for label, record in runs.items()}
    settings = {label: tables.settings(record) for label, record in runs.items()}
    facts_too = ("seed", "scale", "sync.policy", "sync.strategy")  # settings that are among the facts
    differing = [*_differing_names(facts), *(name for name in _differing_names(settings) if name not in facts_too)]
    scores = {label: score(record) for label, record in runs.items() if record.estimated}
    considered = {label: one for label, one in scores.items() if one.calibration or one.swaps}
    return {
        "title": f"{text.count(len(records), 'run')} side by side",
        "opening": comparison_opening(records, list(runs)),
        "badges": {label: badge(record) for label, record in runs.items()},
        "outcome": _outcome(runs),
        "by_policy": _by_policy(records),
        "drawings": drawings_of(runs),
        "run_by_run": {label: _own_drawings(record, index) for index, (label, record) in enumerate(runs.items())},
        "known": _scores("Knowledge of links", {its: one.known_cells() for its, one in scores.items()}),
        "known_notes": Score.KNOWN_NOTES,
        "foreseen": _scores("Predictions and swaps", {its: one.done_cells() for its, one in considered.items()}),
        "foreseen_notes": Score.DONE_NOTES,
        "common": {name: value for name, value in next(iter(facts.values()), {}).items() if name not in differing},
        "differing": _differing({label: settings[label] | facts[label] for label in runs}, differing),
    }


def figures_by_run(records: Sequence[RunRecord]) -> list[dict[str, Any]]:
    """Return a row for each run, for a file: its verdict, and its figures by the names of `testbed compare`'s JSON."""
    curves = [_curve(record) for record in records]
    loss = common_loss(curves)
    return [
        {
            "run": label,
            "policy": record.policy,
            "seed": record.manifest.get("seed"),
            "verdict": badge(record).verdict,
            **figures_in(record.summary if record.finished else {}),
            TO_LOSS: seconds_to(loss, curve),
            "loss": loss,
            "directory": str(record.path),
        }
        for label, record, curve in zip(labels(records), records, curves, strict=True)
    ]


def _curve(record: RunRecord) -> Curve:
    """Return the training loss over time of a finished run."""
    return list(zip(*record.metric("loss"), strict=True)) if record.finished else []


def drawings_of(runs: Mapping[str, RunRecord]) -> list[Drawing]:
    """Return the figures that show all runs together."""
    drawn = [
        draw_spread(runs),
        draw_progress(runs, "loss", "Training loss over time"),
        draw_progress(runs, "accuracy", "Test accuracy over time"),
    ]
    return [drawing for drawing in drawn if drawing]


def _own_drawings(record: RunRecord, index: int) -> list[Drawing]:
    """Return the figures of a run that explain its rounds, with names that are unique in the comparison's page."""
    drawn = [draw_rounds(record), draw_network(record), draw_time_spent(record)]
    return [replace(drawing, name=f"{drawing.name}-{index}") for drawing in drawn if drawing]


def labels(records: Sequence[RunRecord]) -> list[str]:
    """Return a unique label for each run: its policy and seed, each only if runs differ in it, or else its id."""
    parts = [(r.policy, f"seed {r.manifest.get('seed')}") for r in records]
    differing = [index for index in (0, 1) if len({part[index] for part in parts}) > 1]
    names = [
        ", ".join(part[index] for index in differing) or record.id for part, record in zip(parts, records, strict=True)
    ]
    times = Counter(names)
    numbered = Counter[str]()
    for index, name in enumerate(names):
        numbered[name] += 1
        if times[name] > 1:
            names[index] = f"{name} #{numbered[name]}"
    return names


def _outcome(runs: dict[str, RunRecord]) -> Table:
    figures = {label: {f.name: f for f in key_figures(record)} for label, record in runs.items()}
    curves = {label: _curve(record) for label, record in runs.items()}
    loss = common_loss(curves.values())
    for label, curve in curves.items() if loss is not None else ():
        name = f"time to loss {text.number(loss)}"
        figures[label][name] = KeyFigure(name, text.seconds(seconds_to(loss, curve)))
    names = list(dict.fromkeys(name for each in figures.values() for name in each))
    rows = tuple(
        (
            Cell(label),
            Cell(verdict := badge(runs[label]).verdict, "" if verdict == "trusted" else "bad"),
            *(
                Cell(each[name].value, each[name].tone) if name in each else Cell(text.UNKNOWN, "muted")
                for name in names
            ),
        )
        for label, each in figures.items()
    )
    return table("Outcome", ("run", "verdict", *names), rows, words=2)


def _by_policy(records: Sequence[RunRecord]) -> Table | None:
    """Return the median and the range over the runs of each group; None where no group has several runs."""
    groups = _alike(records)
    if len(groups) == len(records):
        return None
    rows: list[Sequence[Cell | str]] = []
    loss = common_loss([_curve(record) for record in records])
    for label, own in groups.items():
        sync, training = [r.section("sync") for r in own], [r.section("training") for r in own]
        rows.append(
            (
                label,
                str(len(own)),
                _spread([median_round_s(record) for record in own], text.seconds),
                _spread([each.get("ratio_to_lower_bound") for each in sync], text.times),
                _spread([each.get("ratio_to_bound") for each in sync], text.times),
                _spread([each.get("final_accuracy") for each in training], lambda share: text.percent(share, 1)),
                _spread([each.get("wall_seconds") for each in training], text.seconds),
                _spread([seconds_to(loss, _curve(record)) for record in own], text.seconds),
                _spread([each.get("wan_bytes") for each in sync], text.size),
            )
        )
    learned = "time to the loss" if loss is None else f"time to loss {text.number(loss)}"
    columns = ("policy", "runs", "median round", "over the lower bound", "over the bound", "test accuracy")
    return table("By policy", (*columns, "training time", learned, "over the WAN"), rows)


def _alike(records: Sequence[RunRecord]) -> dict[str, list[RunRecord]]:
    """Return groups of runs that differ in their seed alone, by their policy and the settings that tell them apart."""
    settings = [tables.settings(record) for record in records]
    differing = _differing_names({str(number): its for number, its in enumerate(settings)})
    others = [name for name in differing if name not in ("seed", "sync.policy") and not name.startswith("sync.options")]
    groups: dict[str, list[RunRecord]] = {}
    for record, its in zip(records, settings, strict=True):
        label = ", ".join([record.policy, *(f"{name} {its.get(name, text.UNKNOWN)}" for name in others)])
        groups.setdefault(label, []).append(record)
    return groups


def _spread(values: Sequence[float | None], words: Callable[[float], str]) -> Cell:
    found = text.spread(values, words)
    return Cell(found, "muted" if found == text.UNKNOWN else "")


def _scores(name: str, cells: Mapping[str, Mapping[str, str]]) -> Table | None:
    if not cells:
        return None
    columns = next(iter(cells.values()))
    return table(name, ("run", *columns), ((label, *own.values()) for label, own in cells.items()))


def _differing_names(values: dict[str, dict[str, str]]) -> list[str]:
    names = dict.fromkeys(name for each in values.values() for name in each)
    return [name for name in names if len({each.get(name) for each in values.values()}) > 1]


def _differing(facts: dict[str, dict[str, str]], names: Sequence[str]) -> Table | None:
    if not names:
        return None
    rows = ((label, *(each.get(name, text.UNKNOWN) for name in names)) for label, each in facts.items())
    return table("Differences", ("run", *names), rows, words=1 + len(names))
