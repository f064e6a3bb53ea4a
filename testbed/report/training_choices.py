"""The tables of the schemes that the controller chose for training: its choices, and its judgements term by term."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import exp
from typing import Any

from testbed.report import text
from testbed.report.record import RunRecord
from testbed.report.tables import Cell, Table, table

#: The first candidates of a judgement, which are shown beside the one in force, the chosen one and flat all-reduce.
SHOWN = 4

#: Flat all-reduce, as the controller names it.
FLAT = "gradients, fp32"


def choices(record: RunRecord) -> Table | None:
    """Return a row for each change of the training scheme; None where the experiment fixes the scheme."""
    judged = _judged(record)
    if not judged:
        return None
    rows = [
        (
            f"{line['at_s']:.1f} s",
            text.UNKNOWN if line["round"] is None else str(line["round"]),
            "trial" if line["training"]["trial"] else "choice",
            line["training"]["chosen"],
            Cell(line["training"]["why"], "muted"),
        )
        for line in judged
        if _changed(line)
    ]
    return table("Choices", ("at", "after round", "kind", "scheme", "reason"), rows, words=5)


def _judged(record: RunRecord) -> list[Mapping[str, Any]]:
    return [line for line in record.decisions if "training" in line]


def _changed(line: Mapping[str, Any]) -> bool:
    return bool(line["training"]["change"] and line["adopted"])


def judgements(record: RunRecord) -> list[Table]:
    """Return the terms of each judgement that changed the scheme, and of the last judgement."""
    judged = _judged(record)
    shown = [line for line in judged if _changed(line)]
    if judged and judged[-1] not in shown:
        shown.append(judged[-1])
    return [_terms(line) for line in shown]


def learned(record: RunRecord) -> str:
    """Return in a sentence what the last judgement was based on."""
    judged = _judged(record)
    if not judged:
        return ""
    its, drift = judged[-1]["training"]["learned"], judged[-1]["training"]["drift"]
    within = exp(its["horizon_spread"])
    found = (
        f"The last judgement is based on {text.count(round(its['losses']), 'loss')}: a member learns on its "
        f"own for about {its['horizon']:.0f} steps, known within a factor of {within:.1f}, before it needs the others."
    )
    if drift is not None:
        found += f" The members' distance from their mean was {drift:.1f} times the distance that the mean had moved."
    return found


def _terms(line: Mapping[str, Any]) -> Table:
    its = line["training"]
    columns = (
        *("time per step", "computing per step", "exchange per round", "worth of a step, in all-reduce steps"),
        *("known within", "time per all-reduce step's worth", "saving", "loss at the last sample"),
        "loss above all-reduce's, at most",
    )
    rows = tuple(_row(one) for one in _shown(its["terms"]))
    headings = (("candidate", False), *((name, True) for name in columns), ("verdict", False))
    return Table(f"At {line['at_s']:.1f} s: {its['why']}", headings, rows)


def _shown(terms: Sequence[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    for number, one in enumerate(terms):
        named = "chosen" in one["verdict"] or "in force" in one["verdict"] or one["candidate"] == FLAT
        if number < SHOWN or named:
            yield one


def _row(one: Mapping[str, Any]) -> tuple[Cell, ...]:
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
