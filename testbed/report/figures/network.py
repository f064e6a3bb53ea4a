"""The network as a map, with the plans of a few epochs drawn over it.

The distance of two sites on the map is the square root of their round trip, as nearly as a plane allows; without the
square root, near sites would touch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

import networkx as nx
import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Circle, FancyArrowPatch

from testbed.plan import Plan, Tree
from testbed.report import text
from testbed.report.figures.canvas import CYCLE, GRID, INK, MUTED, PAPER, WIDTH, Drawing, new_figure, style
from testbed.report.record import RunRecord
from testbed.report.run_files import LinkRecord

MOST_PANELS = 4

#: Radii in units of the map, whose longer side is 2.
SITE_RADIUS, WORKER_RADIUS = 0.105, 0.022

#: The least round trip on the map: nearer sites would leave no room for the workers of both.
NEAREST_S = 0.025

#: The rates of two directions that differ by less are written as one.
ALIKE = 1.05

#: The most links with labels: more would cover the map.
MOST_LABELS = 10

#: The sizes of names in points, and the width of a character as a share of its size.
SITE_NAME_POINTS, LABEL_POINTS, CHARACTER = 8.5, 6.8, 0.58

#: Where along a link its label may stand, and the cost of its distance from the middle and from the link, in shares of
#: the label's area that something hides.
ALONG, FAR, ASIDE = (0.5, 0.42, 0.58, 0.34, 0.66, 0.26, 0.74), 0.15, 0.5

Point = tuple[float, float]

#: A background that keeps names legible over lines.
_BEHIND = {"facecolor": PAPER, "edgecolor": "none", "pad": 0.5, "alpha": 0.85}


@dataclass(frozen=True, slots=True)
class _LinkPair:
    """A physical pair of links at a time; rates of both directions in bit/s."""

    rates: tuple[float, float]
    rtt_s: float
    up: bool

    @property
    def label(self) -> str:
        low, high = sorted(self.rates)
        rate = text.mbit(low) if high < ALIKE * low else f"{text.mbit(low)}–{text.mbit(high)}"
        return f"{rate} Mbit/s\n{text.milliseconds(self.rtt_s)}" if self.up else "down"


def draw_network(record: RunRecord) -> Drawing | None:
    """Draw a map for each of up to four plans: the first, the last, and those between that were in force longest.

    For a run without plans, draw the map alone.
    """
    pairs = _pairs(record)
    if not pairs:
        return None
    epochs = [epoch for epoch in record.epochs if epoch in record.plans] or sorted(record.plans)[:1]
    shown: Sequence[int | None] = _chosen(record, epochs) or [None]
    positions = _layout(record, pairs)
    columns = 1 if len(shown) == 1 else 2
    rows = math.ceil(len(shown) / columns)
    ratio = _ratio(positions)
    with style():
        panel = WIDTH / columns if columns == 2 else WIDTH * 0.8
        height = rows * (panel * ratio + 0.3)
        figure = new_figure(height, panel * columns)
        grid = figure.subplots(rows, columns, squeeze=False).ravel()
        figure.subplots_adjust(0.0, 0.0, 1.0, 1 - 0.25 / height, wspace=0.02, hspace=0.3 / (panel * ratio))
        for axes in grid:
            axes.set_axis_off()
        for axes, epoch in zip(grid, shown, strict=False):
            _draw_panel(axes, record, epoch, pairs, positions)
        plans = [f"Plan {epoch}: {_words(record.plans[epoch])}" for epoch in shown if epoch is not None]
        if not plans:
            words = f"{text.count(len(pairs), 'pair')} of links between {text.count(len(positions), 'site')}."
            return Drawing(figure, "network", "The network", words)
        return Drawing(figure, "network", "The network and the plans over it", " ".join(plans))


def _chosen(record: RunRecord, epochs: Sequence[int]) -> list[int]:
    if len(epochs) <= MOST_PANELS:
        return list(epochs)
    between = sorted(epochs[1:-1], key=lambda epoch: -len(record.epochs[epoch]))[: MOST_PANELS - 2]
    return [epochs[0], *sorted(between), epochs[-1]]


def _began(record: RunRecord, epoch: int) -> float:
    rounds = record.epochs.get(epoch)
    return record.since(rounds[0].entered_s) if rounds else 0.0


def _pairs(record: RunRecord) -> list[tuple[str, str]]:
    found: dict[tuple[str, str], None] = {}
    for link in record.states:
        source, _, target = link.partition("->")
        if (target, source) not in found:
            found[source, target] = None
    return list(found)


def _state(states: Sequence[LinkRecord], at_s: float) -> LinkRecord | None:
    """Return the state of a link at a time; None before it was made and after it was removed."""
    before = [state for state in states if state.at_s <= at_s]
    return before[-1] if before and before[-1].there else None


def _pair(record: RunRecord, a: str, b: str, at_s: float) -> _LinkPair | None:
    """Return the state of a pair at a time; None where neither direction existed."""
    states = [_state(record.states.get(link, ()), at_s) for link in (f"{a}->{b}", f"{b}->{a}")]
    found = [state for state in states if state]
    if not found:
        return None
    there, back = found[0], found[-1]
    return _LinkPair((there.rate_bps, back.rate_bps), there.delay_s + back.delay_s, there.up and back.up)


def _rtt_s(record: RunRecord, a: str, b: str) -> float:
    """Return the round trip in seconds between two sites of a pair, as it was when the pair came up."""
    there = record.states[f"{a}->{b}"][0]
    back = record.states.get(f"{b}->{a}", (there,))[0]
    return there.delay_s + back.delay_s


def _layout(record: RunRecord, pairs: Sequence[tuple[str, str]]) -> dict[str, Point]:
    """Return the position of each site, with the longer axis across."""
    graph = nx.Graph()
    graph.add_nodes_from(record.sites)
    for a, b in pairs:
        graph.add_edge(a, b, length=math.sqrt(max(_rtt_s(record, a, b), NEAREST_S)))
    if len(graph) == 1:
        return dict.fromkeys(graph, (0.0, 0.0))
    raw = nx.kamada_kawai_layout(graph, weight="length")
    sites = list(raw)
    points = np.array([raw[site] for site in sites])
    points -= points.mean(axis=0)
    _, _, axes = np.linalg.svd(points)
    points = points @ axes.T
    # The axes have no direction of their own: the first site is put to the left and above, so that runs look alike.
    points *= np.where(points[0] > 0, -1, 1) * np.array([1, -1])
    points /= np.abs(points).max()
    return {site: (float(x), float(y)) for site, (x, y) in zip(sites, points, strict=True)}


_MARGIN = 0.32


def _extent(positions: Mapping[str, Point]) -> tuple[float, float, float, float]:
    xs, ys = [x for x, _ in positions.values()], [y for _, y in positions.values()]
    return min(xs) - _MARGIN, max(xs) + _MARGIN, min(ys) - _MARGIN, max(ys) + _MARGIN


def _ratio(positions: Mapping[str, Point]) -> float:
    left, right, low, high = _extent(positions)
    return (high - low) / (right - left)


def _draw_panel(
    axes: Axes, record: RunRecord, epoch: int | None, pairs: Sequence[tuple[str, str]], positions: Mapping[str, Point]
) -> None:
    left, right, low, high = _extent(positions)
    # With fixed limits, patches are added as artists: `add_patch` computes extents, a tenth of the time of a page.
    axes.set(xlim=(left, right), ylim=(low, high))
    axes.set_aspect("equal")
    _draw_links(axes, record, pairs, positions, 0.0 if epoch is None else _began(record, epoch))
    workers = _draw_sites(axes, record, positions)
    if epoch is not None:
        _draw_plan(axes, record.plans[epoch], workers)
        axes.set_title(_title(record, epoch), color=INK, weight="bold", pad=4)


def _title(record: RunRecord, epoch: int) -> str:
    plan, rounds = record.plans[epoch], record.epochs.get(epoch, ())
    parts = [f"plan {epoch}" + (f" ({plan.policy})" if plan.policy else "")]
    if rounds:
        parts.append(f"rounds {rounds[0].number}–{rounds[-1].number}")
        parts.append(f"{text.seconds(median(r.seconds for r in rounds))} per round")
    return " · ".join(parts)


def _draw_links(
    axes: Axes,
    record: RunRecord,
    pairs: Sequence[tuple[str, str]],
    positions: Mapping[str, Point],
    at_s: float,
) -> None:
    fastest = max((state.rate_bps for states in record.states.values() for state in states), default=1.0)
    labels = Labels(axes, positions)
    for a, b in pairs:
        pair = _pair(record, a, b, at_s)
        if pair is None:
            continue
        (x0, y0), (x1, y1) = positions[a], positions[b]
        width = 0.8 + 6 * math.sqrt(min(pair.rates) / fastest) if pair.up else 1.2
        axes.plot([x0, x1], [y0, y1], color=GRID, linewidth=width, linestyle="-" if pair.up else (0, (3, 3)), zorder=1)
        if len(pairs) > MOST_LABELS:
            continue
        axes.text(
            *labels.place(pair.label, positions[a], positions[b]),
            pair.label,
            ha="center",
            va="center",
            fontsize=LABEL_POINTS,
            color=MUTED,
            linespacing=1.05,
            bbox=_BEHIND,
            zorder=5,
        )


class Labels:
    """Finds places for the labels of links that cover neither sites, nor their names, nor one another."""

    def __init__(self, axes: Axes, positions: Mapping[str, Point]) -> None:
        figure = axes.get_figure(root=True)
        assert figure is not None
        left, right = axes.get_xlim()
        self._unit = (right - left) / (axes.get_position().width * figure.get_figwidth() * 72)  # per point
        #: The boxes of sites, their names, and placed labels.
        self.taken: list[_Box] = []
        for site, (x, y) in positions.items():
            name = len(site) * SITE_NAME_POINTS * CHARACTER * self._unit / 2
            self.taken.append(_Box(x - SITE_RADIUS, y - SITE_RADIUS, x + SITE_RADIUS, y + SITE_RADIUS))
            self.taken.append(_Box(x - name, y - SITE_RADIUS - 0.14, x + name, y - SITE_RADIUS))

    def place(self, label: str, start: Point, stop: Point) -> Point:
        """Return the place on or beside a link where its label covers the least, and take it."""
        lines = label.split("\n")
        # Half of the label's width and height.
        width = max(map(len, lines)) * LABEL_POINTS * CHARACTER * self._unit / 2
        height = len(lines) * LABEL_POINTS * 1.15 * self._unit / 2
        (x0, y0), (x1, y1) = start, stop
        length = math.hypot(x1 - x0, y1 - y0) or 1.0
        across = ((y0 - y1) / length, (x1 - x0) / length)
        aside = abs(across[0]) * width + abs(across[1]) * height
        area = 4 * width * height

        def hidden(away: float, part: float) -> tuple[float, _Box]:
            x, y = x0 + part * (x1 - x0) + away * aside * across[0], y0 + part * (y1 - y0) + away * aside * across[1]
            box = _Box(x - width, y - height, x + width, y + height)
            far = ASIDE * abs(away) + abs(part - 0.5)
            return sum(box.shared(other) for other in self.taken) + FAR * area * far, box

        tries = (hidden(away, part) for away in (0.0, 0.8, -0.8, 1.1, -1.1, 1.5, -1.5) for part in ALONG)
        _, best = min(tries, key=lambda one: one[0])
        self.taken.append(best)
        return (best.left + best.right) / 2, (best.low + best.high) / 2


@dataclass(frozen=True, slots=True)
class _Box:
    left: float
    low: float
    right: float
    high: float

    def shared(self, other: _Box) -> float:
        """Return the area that both boxes cover."""
        across = min(self.right, other.right) - max(self.left, other.left)
        up = min(self.high, other.high) - max(self.low, other.low)
        return max(across, 0.0) * max(up, 0.0)


def _draw_sites(axes: Axes, record: RunRecord, positions: Mapping[str, Point]) -> dict[str, Point]:
    """Draw the sites with their workers. Returns the position of each worker."""
    workers: dict[str, Point] = {}
    for site, (x, y) in positions.items():
        axes.add_artist(Circle((x, y), SITE_RADIUS, facecolor=PAPER, edgecolor=MUTED, linewidth=0.8, zorder=2))
        axes.text(
            x,
            y - SITE_RADIUS - 0.025,
            site,
            ha="center",
            va="top",
            fontsize=SITE_NAME_POINTS,
            color=INK,
            bbox=_BEHIND,
            zorder=7,
        )
        local = record.sites.get(site, ())
        radius = 0.0 if len(local) == 1 else SITE_RADIUS * 0.58
        for index, member in enumerate(local):
            angle = math.pi + 2 * math.pi * index / len(local)
            workers[member] = (x + radius * math.cos(angle), y + radius * math.sin(angle))
            axes.add_artist(Circle(workers[member], WORKER_RADIUS, facecolor=INK, linewidth=0, zorder=6))
    return workers


def _draw_plan(axes: Axes, plan: Plan, workers: Mapping[str, Point]) -> None:
    """Draw arrows towards each tree's root, and dashed ones where the mean returns another way."""
    for index, tree in enumerate(plan.trees):
        colour = CYCLE[index % len(CYCLE)]
        width = 1.0 + 1.0 * tree.share
        for child, parent in tree.reduce.items():
            _arrow(axes, workers[child], workers[parent], colour, width, "-")
        for child, parent in tree.broadcast.items():
            if tree.reduce.get(child) != parent:
                _arrow(axes, workers[parent], workers[child], colour, width, (0, (3, 2)))
        axes.add_artist(
            Circle(workers[tree.root], 2 * WORKER_RADIUS, facecolor="none", edgecolor=colour, linewidth=1.4, zorder=6)
        )


def _arrow(axes: Axes, start: Point, stop: Point, colour: str, width: float, line: object) -> None:
    axes.add_artist(
        FancyArrowPatch(
            start,
            stop,
            connectionstyle="arc3,rad=0.16",
            arrowstyle="-|>,head_length=4.5,head_width=2.2",
            shrinkA=4,
            shrinkB=5,
            color=colour,
            linewidth=width,
            linestyle=line,
            alpha=0.9,
            zorder=4,
        )
    )


def _words(plan: Plan) -> str:
    return "; ".join(_tree_words(tree) for tree in plan.trees) + "."


def _tree_words(tree: Tree) -> str:
    hops = ", ".join(f"{child}->{parent}" for child, parent in sorted(tree.reduce.items()))
    return f"{tree.share:.0%} of the model over root {tree.root}, {hops}"
