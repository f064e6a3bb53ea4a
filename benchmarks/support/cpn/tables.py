"""The tables of `benchmarks.cpn`: the protocols side by side, and the runs whose links fall."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import mean
from typing import Any

from benchmarks.support.campaign import seconds_to, seeds_in
from benchmarks.support.cpn.cells import TASKS, Cell
from benchmarks.support.cpn.protocols import ABLATIONS, BASELINES, CONDUCTED, EVENTS, FLAT, OURS
from benchmarks.support.paired import CONFIDENCE, Ratio, ratio
from benchmarks.support.table import Table

#: The rule of docs/schemes.md: the hybrid, where a round of the flat all-reduce takes more steps of the slowest member
#: than this. On text the hybrid was the first at all rates.
LONG: Mapping[str, float] = {"text": 0.0, "digits": 2.5}
#: Times nearer to each other than this are equally good.
NEAR = 0.05

#: The suffix of a protocol's name where the first plan is held.
HELD = ", held"


def measured(found: Mapping[str, Any], task: str, protocol: str) -> dict[Cell, Any]:
    """Return the kept figures of a protocol, by cell."""
    cells = [Cell(task, protocol, seed) for seed in seeds_in(found)]
    return {cell: found[cell.key] for cell in cells if cell.key in found}


def seconds(found: Mapping[str, Any], task: str, protocol: str) -> dict[int, float]:
    """Return each seed's seconds to its goal, or the limit where it was not reached."""
    runs = measured(found, task, protocol)
    return {cell.seed: seconds_to(cell.goal.loss, run) or cell.goal.limit_s for cell, run in runs.items()}


def reached(found: Mapping[str, Any], task: str, protocol: str) -> list[float]:
    """Return the seconds of the runs that reached their goal."""
    runs = measured(found, task, protocol)
    return [at_s for cell, run in runs.items() if (at_s := seconds_to(cell.goal.loss, run)) is not None]


def worst(found: Mapping[str, Any], task: str, protocol: str) -> dict[int, float]:
    """Return each seed's loss at the worst site at the end of its run."""
    runs = measured(found, task, protocol)
    return {cell.seed: run["worst_loss"] for cell, run in runs.items() if run["worst_loss"] is not None}


def table(found: Mapping[str, Any], task: str) -> tuple[Table, dict[str, Any]]:
    """Return a table of the protocols, with their time relative to the hybrid's, and its figures."""
    goal = TASKS[task].goal
    rows, figures = [], {}
    for protocol in (OURS, *BASELINES, *ABLATIONS):
        runs = list(measured(found, task, protocol).values())
        if not runs:
            continue
        learned = reached(found, task, protocol)
        times = ratio(seconds(found, task, protocol), seconds(found, task, OURS))
        losses = ratio(worst(found, task, protocol), worst(found, task, OURS))
        figures[protocol] = {
            "seconds_to_goal": mean(learned) if learned else None,
            "reached": len(learned),
            "seeds": len(runs),
            "slower": _figure(times),
            "worst_loss_over_ours": _figure(losses),
            "at_least": len(learned) < len(runs),
            **{name: _middle(runs, name) for name in ("wan_bytes", "idle", "cpu", "worst_loss")},
        }
        rows.append(_row(protocol, runs, learned, times, losses))
    columns = ["protocol", "s to goal", "reached", "× ours", "loss", "worst site's", "× ours"]
    columns += ["WAN MB", "MB/s", "idle", "CPU"]
    notes = [
        f"goal: test loss {goal.loss:g} within {goal.limit_s:g} s; what does not reach it counts as reaching it then "
        f"(>); interval: {CONFIDENCE:.0%}, paired by seed",
        f"baselines: {', '.join(BASELINES)}; ablations: {', '.join(ABLATIONS)}",
    ]
    return Table(f"Time to a loss of {goal.loss:g}: {task}, 12 members in 4 regions", columns, rows, notes), figures


def events_table(found: Mapping[str, Any], task: str) -> tuple[Table, dict[str, Any]]:
    """Return a table of runs in which a region's links fall: with plans that change, and with the first one held."""
    goal = TASKS[task].beyond
    rows, figures = [], {}
    for protocol in EVENTS:
        runs = list(measured(found, task, protocol).values())
        if not runs:
            continue
        learned = reached(found, task, protocol)
        times = ratio(seconds(found, task, protocol), seconds(found, task, protocol.removesuffix(HELD)))
        swaps = [run["rounds_to_swap"] for run in runs if run["rounds_to_swap"] is not None]
        inside = [run["rounds_inside"] for run in runs if run["rounds_to_swap"] is not None]
        figures[protocol] = {
            "seconds_to_goal": mean(learned) if learned else None,
            "reached": len(learned),
            "seeds": len(runs),
            "slower": _figure(times),
            "rounds_to_swap": swaps,
            "rounds_inside": inside,
            "wan_bytes": _middle(runs, "wan_bytes"),
        }
        rows.append(
            [
                *_learned(protocol, runs, learned, times),
                ", ".join(_rounds(*each) for each in zip(swaps, inside, strict=True)) or "-",
                f"{mean(run['wan_bytes'] for run in runs) / 1e6:.1f}",
            ]
        )
    columns = ["", "s to goal", "reached", "× that follows", "rounds under the old plan", "WAN MB"]
    notes = [
        f"goal: test loss {goal.loss:g} within {goal.limit_s:g} s; {HELD.strip(', ')}: no plan follows the first",
        "in brackets: those of them inside groups, which the fall does not touch; under auto all are among all",
    ]
    return Table(f"A region's links fall to a tenth: {task}", columns, rows, notes), figures


def rule_table(found: Mapping[str, Any], cells: Sequence[Cell]) -> tuple[Table, list[dict[str, Any]]]:
    """Return a table of simulated cells: the times to the goal, the protocol that the rule names, and if it was right.

    A cell's row is a task at a factor on the rates, its times the means over the seeds. A run that did not reach its
    goal counts as reaching it at the limit.
    """
    figures = []
    for task, scale in dict.fromkeys((cell.task, cell.scale) for cell in cells):
        times: dict[str, list[float]] = {}
        steps = []
        for cell in cells:
            if (cell.task, cell.scale) == (task, scale) and (run := found.get(cell.key)):
                times.setdefault(cell.protocol, []).append(seconds_to(cell.goal.loss, run) or cell.goal.limit_s)
                if cell.protocol == FLAT:
                    steps.append(run["seconds"] / run["rounds"] / TASKS[task].slowest_step_s)
        if not times.keys() >= {OURS, FLAT}:
            continue
        middle = {protocol: mean(ones) for protocol, ones in times.items()}
        quicker = min((OURS, FLAT), key=middle.__getitem__)
        named = OURS if mean(steps) > LONG[task] else FLAT
        figures.append(
            {
                "task": task,
                "scale": scale,
                "seeds": len(times[OURS]),
                "steps": mean(steps),
                "seconds": middle,
                "named": named,
                "right": middle[named] <= (1 + NEAR) * middle[quicker],
            }
        )
    rows = [
        [
            f"{one['task']}, {one['scale']:g}",
            str(one["seeds"]),
            f"{one['steps']:.1f}",
            *(f"{one['seconds'][name]:.1f}" if name in one["seconds"] else "-" for name in (OURS, FLAT, CONDUCTED)),
            one["named"],
            "yes" if one["right"] else "NO",
        ]
        for one in figures
    ]
    columns = ["task, rates", "seeds", "flat round, steps", *(f"{its}, s" for its in (OURS, FLAT, CONDUCTED))]
    columns += ["the rule names", "right"]
    right = sum(one["right"] for one in figures)
    notes = [f"right in {right} of {len(figures)}; times within {NEAR:.0%} of each other are equally good"]
    return Table("Where the hybrid is worth it, simulated", columns, rows, notes), figures


def _rounds(number: int, inside: int) -> str:
    return f"{number} ({inside})" if inside else str(number)


def _figure(times: Ratio | None) -> dict[str, Any] | None:
    if times is None:
        return None
    return {"ratio": times.value, "interval": [times.low, times.high] if times.pairs > 1 else None}


def _row(
    protocol: str,
    runs: Sequence[Mapping[str, Any]],
    learned: Sequence[float],
    times: Ratio | None,
    losses: Ratio | None,
) -> list[str]:
    diverged = sum(bool(run["curve"]) and run["loss"] is None for run in runs)
    return [
        *_learned(protocol, runs, learned, times),
        said(_middle(runs, "loss"), ".3f") + (f" ({diverged} diverged)" if diverged else ""),
        said(_middle(runs, "worst_loss"), ".3f"),
        "-" if losses is None else str(losses),
        f"{mean(run['wan_bytes'] for run in runs) / 1e6:.1f}",
        f"{mean(run['wan_bytes'] / run['seconds'] for run in runs) / 1e6:.2f}",
        said(_middle(runs, "idle"), ".0%"),
        said(_middle(runs, "cpu"), ".0%"),
    ]


def _learned(
    protocol: str, runs: Sequence[Mapping[str, Any]], learned: Sequence[float], times: Ratio | None
) -> list[str]:
    """Return a row's first cells: the mean seconds to the goal, how many runs reached it, and the ratio."""
    return [
        protocol,
        f"{mean(learned):.1f}" if learned else "-",
        f"{len(learned)}/{len(runs)}",
        "-" if times is None else f"{'>' if len(learned) < len(runs) else ''}{times}",
    ]


def _middle(runs: Sequence[Mapping[str, Any]], name: str) -> float | None:
    """Return the mean over the runs that have the figure: one that diverged or was never evaluated has none."""
    values = [run[name] for run in runs if run[name] is not None]
    return mean(values) if values else None


def said(value: float | None, form: str) -> str:
    """Return a figure as text, or a dash for None."""
    return "-" if value is None else format(value, form)
