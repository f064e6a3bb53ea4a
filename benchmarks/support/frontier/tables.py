"""The tables of `benchmarks.frontier`: loss, bytes and time of each scheme, by task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean
from typing import Any

from benchmarks.support.campaign import seconds_to
from benchmarks.support.frontier.cells import REFERENCES, TIMED_ROUNDS, Cell, Task
from benchmarks.support.frontier.measure import loss_of
from benchmarks.support.paired import CONFIDENCE, Ratio, ratio
from benchmarks.support.table import Table
from testbed.report.figures.canvas import CYCLE, new_figure, style

#: How far above all-reduce's loss a loss may be, at equal samples, to count as equal.
WITHIN = 0.02

Found = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Compared:
    """A scheme on a task, over the seeds that all-reduce was measured on as well."""

    task: str
    scheme: str
    seeds: int
    #: Runs with the verdict `suspect`.
    suspect: int
    #: Runs whose last loss is no number.
    diverged: int
    #: The scheme's last loss over all-reduce's, of the runs that did not diverge; None if all did.
    loss: Ratio | None
    #: The same at the worst site.
    worst: Ratio | None
    #: All-reduce's bytes per member over the scheme's; None if the scheme sent nothing.
    fewer: Ratio | None
    #: The same of the members with the most bytes.
    fewer_most: Ratio | None
    #: Seeds whose loss came within WITHIN of all-reduce's last loss.
    reached: int
    #: Their mean seconds until then.
    seconds: float | None
    #: The time of all of all-reduce's steps, by reference (star, packing), over those seconds.
    sooner: Mapping[str, Ratio | None]


def compared(found: Found, task: Task, scheme: str, seeds: int, steps: int, simulated: bool) -> Compared | None:
    """Compare a scheme with all-reduce; None if nothing of it was measured."""
    runs, bases, timed, goals = {}, {}, {}, {}
    for seed in range(1, seeds + 1):
        own = found.get(Cell(task, scheme, seed, simulated, steps).key)
        base = found.get(Cell(task, "all-reduce", seed, True, steps).key)
        references = {name: found.get(Cell(task, name, seed, simulated, steps, timed=True).key) for name in REFERENCES}
        if own and base and all(references.values()) and (loss := loss_of(base)) is not None:
            runs[seed], bases[seed], timed[seed], goals[seed] = own, base, references, loss * (1 + WITHIN)
    if not runs:
        return None
    taken = {seed: at for seed, run in runs.items() if (at := seconds_to(goals[seed], run)) is not None}
    whole = {
        name: {seed: steps * its[name]["round_s"] for seed, its in timed.items()}  # type: ignore[index]
        for name in REFERENCES
    }

    def fewer(which: str) -> Ratio | None:
        sent = {seed: its["packing"][which] * steps / TIMED_ROUNDS for seed, its in timed.items()}  # type: ignore[index]
        return ratio(sent, {seed: run[which] for seed, run in runs.items() if run[which]})

    def losses(of: Mapping[int, Mapping[str, Any]], place: int) -> dict[int, float]:
        return {seed: loss for seed, run in of.items() if (loss := run["curve"][-1][place]) is not None}

    return Compared(
        task=task.name,
        scheme=scheme,
        seeds=len(runs),
        suspect=sum(run["verdict"] == "suspect" for run in runs.values()),
        diverged=sum(loss_of(run) is None for run in runs.values()),
        loss=ratio(losses(runs, 1), losses(bases, 1)),
        worst=ratio(losses(runs, 2), losses(bases, 2)),
        fewer=fewer("mean_bytes"),
        fewer_most=fewer("most_bytes"),
        reached=len(taken),
        seconds=mean(taken.values()) if taken else None,
        sooner={name: ratio(its, taken) for name, its in whole.items()},
    )


def table(ones: Sequence[Compared], task: Task, steps: int, simulated: bool) -> Table:
    """Return the table of the schemes on a task."""
    rows = [
        [
            one.scheme,
            f"{one.seeds}",
            "-" if one.loss is None else _percent(one.loss),
            "-" if one.worst is None else str(one.worst),
            *("nothing" if its is None else f"{its.value:.0f} ×" for its in (one.fewer, one.fewer_most)),
            f"{one.reached}/{one.seeds}",
            "-" if one.seconds is None else f"{one.seconds:.1f}",
            *("-" if its is None else str(its) for its in (one.sooner["star"], one.sooner["packing"])),
            f"{one.suspect}",
            f"{one.diverged}",
        ]
        for one in ones
    ]
    columns = ["", "seeds", "loss above", "worst site's ×", "bytes fewer", "of the most", "reached", "s"]
    columns += ["× star", "× packing", "suspect", "diverged"]
    notes = [
        "loss above all-reduce's at equal samples, bytes a member sent and received against its fp32; "
        f"[{CONFIDENCE:.0%} intervals], paired by seed",
        f"reached: within {WITHIN:.0%} of all-reduce's last loss; ×: how many times as fast as all of its steps are "
        "to one server, one key, median place, and by packing",
    ]
    how = "simulated" if simulated else "emulated"
    return Table(f"{task.name}, {steps} steps, {how}", columns, rows, notes)


def _percent(loss: Ratio) -> str:
    interval = f" [{loss.low - 1:+.1%}, {loss.high - 1:+.1%}]" if loss.pairs > 1 else ""
    return f"{loss.value - 1:+.1%}{interval}"


def figures(ones: Sequence[Compared]) -> list[dict[str, Any]]:
    """Return the comparisons as values for JSON, where infinite intervals, those of one seed, are null."""
    return [asdict(one) for one in ones]


def draw(by_task: Mapping[str, Sequence[Compared]], file: Path) -> None:
    """Draw bytes against loss, with a panel for each task: to the right and below is better."""
    columns = min(3, len(by_task))
    rows = -(-len(by_task) // columns)
    names = list(dict.fromkeys(one.scheme for ones in by_task.values() for one in ones))
    with style():
        figure = new_figure(0.6 + 2.6 * rows)
        panels = figure.subplots(rows, columns, squeeze=False).flat
        for axes, (task, ones) in zip(panels, by_task.items(), strict=False):
            for one in ones:
                if one.loss is None or one.fewer is None:
                    continue
                number = names.index(one.scheme)
                colour, marker = CYCLE[number % len(CYCLE)], "osD^vPX*"[number // len(CYCLE) % 8]
                axes.plot(one.fewer.value, 100 * (one.loss.value - 1), marker, color=colour, label=one.scheme)
            axes.axhline(100 * WITHIN, linewidth=0.8, linestyle=(0, (2, 1.5)))
            axes.set_xscale("log")
            axes.set_yscale("symlog", linthresh=2)
            axes.set_title(task)
            axes.set_xlabel("times fewer bytes a member")
            axes.set_ylabel("% loss above all-reduce's")
        handles = {
            label: handle
            for axes in figure.axes
            for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
        }
        figure.legend(handles.values(), handles.keys(), loc="upper center", ncols=4)
        figure.subplots_adjust(0.07, 0.5 / (0.6 + 2.6 * rows), 0.985, 1 - 0.75 / (0.6 + 2.6 * rows), 0.28, 0.45)
        file.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(file)
