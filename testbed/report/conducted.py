"""How members trained where the controller chose that, and why: its judgements, term by term."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import exp
from typing import Any

from testbed.report import text
from testbed.report.record import RunRecord
from testbed.report.tables import Cell, Table

#: Candidates that a judgement shows beside those in force and chosen, and flat all-reduce.
SHOWN = 4

#: As the controller names it.
FLAT = "gradients, fp32"

Words = Sequence[Cell]


def choices(record: RunRecord) -> Table | None:
    """Every change of how members train: when, from what to what, and why. None where that was not chosen."""
    judged = [line for line in record.decisions if "training" in line]
    if not judged:
        return None
    rows: list[Words] = [
        (
            Cell(f"{line['at_s']:.1f} s"),
            Cell(text.UNKNOWN if line["round"] is None else str(line["round"])),
            Cell("trial" if line["training"]["trial"] else "choice"),
            Cell(line["training"]["chosen"]),
            Cell(line["training"]["why"], "muted"),
        )
        for line in judged
        if line["training"]["change"] and line["adopted"]
    ]
    columns = (("at", False), ("after round", True), ("as a", False), ("members train by", False), ("why", False))
    return Table("Choices", columns, tuple(map(tuple, rows)))


def judgements(record: RunRecord) -> list[Table]:
    """Each judgement that changed something, and the last one, in a table of its terms."""
    judged = [line for line in record.decisions if "training" in line]
    shown = [line for line in judged if line["training"]["change"] and line["adopted"]]
    if judged and judged[-1] not in shown:
        shown.append(judged[-1])
    return [_terms(line) for line in shown]


def learned(record: RunRecord) -> str:
    """In a sentence, what the last judgement went by."""
    judged = [line["training"] for line in record.decisions if "training" in line]
    if not judged:
        return ""
    its, drift = judged[-1]["learned"], judged[-1]["drift"]
    within = exp(its["horizon_spread"])
    found = (
        f"Learned in the end, from {its['losses']:.0f} losses: members go on by themselves for about "
        f"{its['horizon']:.0f} steps, within a factor of {within:.1f}, before they have little more to learn."
    )
    if drift is not None:
        found += f" They stood {drift:.1f} times as far from their mean as that had moved."
    return found


def _terms(line: Mapping[str, Any]) -> Table:
    its = line["training"]
    rows = [_row(one) for one in _shown(its["terms"])]
    columns = (
        ("candidate", False),
        ("a step takes", True),
        ("of that it computes", True),
        ("a round's exchange", True),
        ("a step is worth", True),
        ("known within", True),
        ("for as much as a step of flat all-reduce", True),
        ("saves", True),
        ("loss at the last sample", True),
        ("above all-reduce's, at most", True),
        ("", False),
    )
    return Table(f"At {line['at_s']:.1f} s: {its['why']}", columns, tuple(map(tuple, rows)))


def _shown(terms: Sequence[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    for number, one in enumerate(terms):
        named = "chosen" in one["verdict"] or "in force" in one["verdict"] or one["candidate"] == FLAT
        if number < SHOWN or named:
            yield one


def _row(one: Mapping[str, Any]) -> Words:
    return (
        Cell(one["candidate"]),
        Cell(text.milliseconds(one["step_s"])),
        Cell(text.milliseconds(one["compute_s"])),
        Cell(text.milliseconds(one["exchange_s"])),
        Cell(f"{one['worth']:.2f}"),
        Cell(f"× {exp(one['spread']):.2f}"),
        Cell(text.milliseconds(one["effective_s"])),
        Cell(text.percent(one["saves"])),
        Cell(text.number(one["final_loss"])),
        Cell(text.percent(one["above"], 1)),
        Cell(one["verdict"], "muted"),
    )
