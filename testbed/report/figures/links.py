"""The rates of each link over time: in force, measured, and estimated by the controller."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from testbed.link import link_ends, link_name
from testbed.report import text
from testbed.report.figures.canvas import (
    BLUE,
    GREEN,
    INK,
    MUTED,
    ORANGE,
    SKY,
    TIME_RIGHT,
    WIDTH,
    Drawing,
    draw_marks,
    new_figure,
    style,
)
from testbed.report.record import RunRecord
from testbed.report.series import Band, StepFunction, arrived, backlogged, down_spans, estimated, rate_in_force

COLUMNS = 4

#: The most panels; of more links, those that carried most are shown.
MOST_LINKS = 60

#: The most steps of a panel: about two per point of its width, some 165 points with four panels in a row.
STEPS_A_PANEL = 360

_PANEL_HEIGHT, _TOP, _BOTTOM = 1.28, 0.5, 0.42


def draw_links(record: RunRecord) -> Drawing | None:
    """Draw a panel for each link, the two directions of a pair side by side."""
    links = _chosen(record)
    if not links or not record.end_s:
        return None
    columns = min(COLUMNS, len(links))
    rows = math.ceil(len(links) / columns)
    with style():
        height = rows * _PANEL_HEIGHT + _TOP + _BOTTOM
        figure = new_figure(height)
        grid = figure.subplots(rows, columns, sharex=True, squeeze=False).ravel()
        figure.subplots_adjust(0.035, _BOTTOM / height, TIME_RIGHT, 1 - _TOP / height, wspace=0.16, hspace=0.42)
        for axes, link in zip(grid, links, strict=False):
            _draw_link(axes, record, link)
        for axes in grid[len(links) :]:
            axes.set_visible(False)
        for axes in grid[max(0, len(links) - columns) : len(links)]:
            axes.tick_params(labelbottom=True)
        figure.text(TIME_RIGHT, 0.08 / height, "seconds since training began", ha="right", color=MUTED, fontsize=8)
        _legend(figure, height, record)
        left_out = len(record.states) - len(links)
        others = f", those that carried most; {left_out} more are left out" if left_out > 0 else ""
        alt = f"{text.count(len(links), 'link')}{others}. "
        alt += "; ".join(f"{link}: {_words(record, link)}" for link in links)
        return Drawing(figure, "links", "Rate in force and measured rate, by link", alt)


def _chosen(record: RunRecord) -> list[str]:
    """Return the links to show, the directions of a pair together, in the order in which they came up."""
    links = list(record.states)
    if len(links) > MOST_LINKS:
        carried = record.samples[-1].bytes if record.samples else {}
        links = sorted(links, key=lambda link: -carried.get(link, 0))[:MOST_LINKS]
    ordered: dict[str, None] = {}
    for link in links:
        back = link_name(*reversed(link_ends(link)))
        ordered.update({each: None for each in (link, back) if each in links})
    return list(ordered)


def _draw_link(axes: Axes, record: RunRecord, link: str) -> None:
    states = record.states[link]
    rate = rate_in_force(states, record.end_s)
    measured, busy = arrived(record.samples, link), backlogged(record.samples, link)
    # What a link with a backlogged queue must carry: the backlogged share of the second times the rate in it.
    carried = StepFunction(busy.edges, busy.values * rate.means(busy.edges))
    _stairs(axes, carried, fill=True, color=SKY, alpha=0.38, linewidth=0)
    _stairs(axes, measured, color=BLUE, linewidth=0.9)
    _stairs(axes, rate, color=ORANGE, linewidth=1.1)
    if record.estimated:
        _draw_estimate(axes, estimated(record.estimates, link, record.end_s).grouped(STEPS_A_PANEL // 2))
    for start, stop in down_spans(states, record.end_s):
        axes.axvspan(start, stop, facecolor="none", edgecolor=MUTED, hatch="/////", linewidth=0)
    draw_marks([axes], [mark for mark in record.marks if mark.kind != "event"], record.end_s, names=False)
    axes.set_title(link, color=INK, pad=3)
    axes.set_xlim(0, record.end_s)
    highest = np.nanmax(rate.values) if not np.all(np.isnan(rate.values)) else 1e6
    axes.set_ylim(0, max(highest, np.nanmax(np.append(measured.values, 0.0))) / 1e6 * 1.12)
    axes.yaxis.set_major_locator(MaxNLocator(3))
    axes.xaxis.set_major_locator(MaxNLocator(4, integer=True))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_label_coords(0, 0)  # a panel has no labels; without a place, Matplotlib lays out all ticks to find one


def _stairs(axes: Axes, steps: StepFunction, **look: object) -> None:
    thin = steps.thinned(STEPS_A_PANEL)
    axes.stairs(thin.values / 1e6, thin.edges, baseline=0 if look.get("fill") else None, **look)  # type: ignore[arg-type]


def _draw_estimate(axes: Axes, band: Band) -> None:
    look: dict[str, Any] = {"color": GREEN, "zorder": 2.5}
    axes.stairs(band.high / 1e6, band.edges, baseline=band.low / 1e6, fill=True, alpha=0.25, linewidth=0, **look)
    axes.stairs(band.middle / 1e6, band.edges, baseline=None, linewidth=0.9, **look)


def _legend(figure: Figure, height: float, record: RunRecord) -> None:
    y, x = 1 - 0.14 / height, 0.035
    entries: Sequence[tuple[str, str, float]] = (
        ("rate in force (Mbit/s)", ORANGE, 0.145),
        ("measured, per second", BLUE, 0.17),
        ("shade: rate × share of the second with a backlogged queue", SKY, 0.36),
        ("hatched: down", MUTED, 0.095),
        *([("estimated, with its interval", GREEN, 0.16)] if record.estimated else []),
    )
    for words, colour, width in entries:
        figure.text(x, y, "■", color=colour, fontsize=9, va="center")
        figure.text(x + 11 / 72 / WIDTH, y, words, color=INK, fontsize=8, va="center")
        x += width


def _words(record: RunRecord, link: str) -> str:
    rates = [state.rate_bps for state in record.states[link] if state.passes]
    if not rates:
        return "never up"
    low, high = text.mbit(min(rates)), text.mbit(max(rates))
    return f"{low} Mbit/s" if low == high else f"{low} to {high} Mbit/s"
