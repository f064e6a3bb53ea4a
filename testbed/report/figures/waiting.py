"""Where time goes: waits by peer, time spent by each member, and the load of the host's processors."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import mean, median
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle
from matplotlib.ticker import PercentFormatter

from testbed.report import text
from testbed.report.figures.canvas import (
    BEHIND,
    BLUE,
    GREEN,
    INK,
    MUTED,
    ORANGE,
    PAPER,
    YELLOW,
    Drawing,
    annotate,
    draw_marks,
    new_figure,
    over_time,
    style,
    time_panels,
)
from testbed.report.record import RunRecord
from testbed.run.conclusion.verdict import CPU_BUSY

#: The most members with figures in their cells: the cells of more are too small.
MOST_WRITTEN = 12

#: The opacity of the darkest cell, in which figures stay readable in both themes.
DARKEST = 0.72


def draw_waiting(record: RunRecord) -> Drawing | None:
    """Draw a cell for each member (row) and sender (column): mean seconds until the sender's last chunk arrived."""
    waited = mean_waits(record)
    if not waited:
        return None
    members = record.members
    size = max(3.2, 1.3 + 0.32 * len(members))
    longest = max(waited.values())
    with style():
        figure = new_figure(size, 5.6)
        axes = figure.subplots()
        axes.grid(False)
        for (member, peer), seconds in waited.items():
            x, y = members.index(peer), members.index(member)
            shade = DARKEST * seconds / longest if longest else 0.0
            axes.add_patch(Rectangle((x - 0.5, y - 0.5), 1, 1, facecolor=ORANGE, alpha=shade, linewidth=0))
            if len(members) <= MOST_WRITTEN:
                axes.text(x, y, f"{seconds:.2f}", ha="center", va="center", fontsize=7.5, color=INK)
        ticks = range(len(members))
        axes.set(xlim=(-0.5, len(members) - 0.5), ylim=(len(members) - 0.5, -0.5))
        axes.set_xticks(ticks, members, rotation=40, ha="left", rotation_mode="anchor")
        axes.set_yticks(ticks, members)
        axes.xaxis.tick_top()
        axes.tick_params(length=0)
        axes.set_xticks(np.arange(len(members) + 1) - 0.5, minor=True)
        axes.set_yticks(np.arange(len(members) + 1) - 0.5, minor=True)
        axes.grid(True, which="minor", axis="both")
        axes.tick_params(which="minor", length=0)
        axes.spines[:].set_visible(False)
        axes.set_ylabel("member that waited", color=MUTED)
        axes.set_xlabel("peer that it waited for: mean seconds into the round", color=MUTED)
        figure.subplots_adjust(0.25, 0.08, 0.9, 1 - 0.95 / size)
        worst = max(waited, key=lambda pair: waited[pair])
        alt = f"The longest wait is that of {worst[0]} for {worst[1]}: {text.seconds(waited[worst])} on average."
        return Drawing(figure, "waiting", "Wait time by peer", alt)


def draw_time_spent(record: RunRecord) -> Drawing | None:
    """Draw a bar for each member: mean seconds per round of computing, pacing and synchronizing."""
    spent = time_spent(record)
    if not spent:
        return None
    members = list(spent)
    size = max(2.6, 1.0 + 0.3 * len(members))
    with style():
        figure = new_figure(size, 5.0)
        axes = figure.subplots()
        _bars(axes, spent)
        axes.set_yticks(range(len(members)), members)
        axes.set_ylim(len(members) - 0.4, -0.6)
        axes.tick_params(axis="y", length=0)
        axes.set_xlabel("mean seconds per round", loc="right", fontsize=8)
        axes.legend(loc="lower left", bbox_to_anchor=(0, 1.0), ncols=3, handlelength=1, columnspacing=1.2, borderpad=0)
        figure.subplots_adjust(0.22, 0.42 / size, 0.96, 1 - 0.35 / size)
        slowest = max(spent, key=lambda member: spent[member]["computing"] + spent[member]["pacing"])
        alt = f"The slowest to compute is {slowest}. " + "; ".join(
            f"{member}: " + ", ".join(f"{what} {text.seconds(value)}" for what, value in parts.items())
            for member, parts in spent.items()
        )
        return Drawing(figure, "time-spent", "Time spent by member", alt)


def _bars(axes: Axes, spent: Mapping[str, Mapping[str, float]]) -> None:
    rows = np.arange(len(spent))
    left = np.zeros(len(spent))
    for what, colour in (("computing", GREEN), ("pacing", YELLOW), ("synchronizing", BLUE)):
        lengths = np.array([parts[what] for parts in spent.values()])
        axes.barh(rows, lengths, left=left, height=0.68, color=colour, alpha=0.85, label=what, edgecolor=PAPER)
        left += lengths
    axes.grid(True, axis="x")
    axes.grid(False, axis="y")


def mean_waits(record: RunRecord) -> dict[tuple[str, str], float]:
    """Return the mean seconds for which a member waited for a sender, by (member, sender)."""
    found: dict[tuple[str, str], list[float]] = {}
    for report in record.reports:
        for peer, seconds in report.waited.items():
            if report.member in record.members and peer in record.members:
                found.setdefault((report.member, peer), []).append(seconds)
    return {pair: mean(values) for pair, values in found.items()}


def time_spent(record: RunRecord) -> dict[str, dict[str, float]]:
    """Return each member's mean seconds per round of computing, pacing and synchronizing, by the member's name."""
    spent = {}
    for member in record.members:
        reports = [report for report in record.reports if report.member == member]
        if reports:
            spent[member] = {
                "computing": mean(report.compute_s for report in reports),
                "pacing": mean(report.paced_s for report in reports),
                "synchronizing": mean(record.synchronizing_s(report) for report in reports),
            }
    return spent


def draw_host(record: RunRecord) -> Drawing | None:
    """Draw the busy share of the processors, second by second, and the share above which the host is starved."""
    found = [(sample.at_s, sample.cpu) for sample in record.samples if sample.cpu is not None and sample.at_s >= 0]
    if len(found) < 2:
        return None
    at, busy = [at for at, _ in found], [busy for _, busy in found]
    starved = sum(each > CPU_BUSY for each in busy) / len(busy)
    with style():
        figure, [axes] = time_panels(1.9, 0.13)
        axes.fill_between(at, busy, step="pre", color=BLUE, alpha=0.15, linewidth=0)
        axes.plot(at, busy, drawstyle="steps-pre", color=BLUE, linewidth=1.0)
        axes.axhline(CPU_BUSY, color=ORANGE, linewidth=1.0, linestyle=(0, (4, 2)))
        place: dict[str, Any] = {"at": (1.0, CPU_BUSY), "xycoords": ("axes fraction", "data"), "offset": (-2, -3)}
        annotate(axes, f"starved above {CPU_BUSY:.0%}", **place, ha="right", va="top", color=ORANGE, bbox=BEHIND)
        axes.set_ylim(0, 1.03)
        axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
        axes.set_ylabel("busy share of processors", color=MUTED)
        over_time(axes, record.end_s)
        draw_marks([axes], record.marks, record.end_s, names=False)
        share = f"above {CPU_BUSY:.0%} in {starved:.0%} of samples"
        alt = f"Busy: {median(busy):.0%} at the median, {max(busy):.0%} at most, {share}."
        return Drawing(figure, "host", "Host processors over time", alt)
