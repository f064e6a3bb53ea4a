"""The style of figures and their axes over time, for a page with a light and a dark theme and for papers.

Matplotlib draws figures in the light palette. In the page they are inline SVG in which each colour becomes a CSS
variable with that colour as its fallback, so the page's style sheet sets the theme, and a figure that is copied from
the page still looks right.
"""

from __future__ import annotations

import html
import io
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO, Literal

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from testbed.report.record import Mark

INK, MUTED, GRID, PAPER = "#1f2328", "#6a737d", "#e1e4e8", "#fffffe"
BLUE, ORANGE, GREEN, PINK, YELLOW, SKY = "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9"

#: Okabe and Ito's colours, which people with any of the common colour deficiencies can tell apart.
CYCLE = (BLUE, ORANGE, GREEN, PINK, YELLOW, SKY)

_VARIABLES: Mapping[str, str] = {
    INK: "--ink",
    MUTED: "--muted",
    GRID: "--grid",
    PAPER: "--paper",
    BLUE: "--blue",
    ORANGE: "--orange",
    GREEN: "--green",
    PINK: "--pink",
    YELLOW: "--yellow",
    SKY: "--sky",
}

#: A background that keeps words legible over lines.
BEHIND: Mapping[str, Any] = {"facecolor": PAPER, "edgecolor": "none", "pad": 0.6, "alpha": 0.75}

#: The width of a figure in inches. At 72 points per inch, text keeps its size relative to the page's column.
WIDTH = 10.8

#: The left and right edge of the axes of every figure over time, so that times align down the page; and the room below
#: the axes, in inches.
TIME_LEFT, TIME_RIGHT, BELOW = 0.062, 0.985, 0.42

#: The forms of a figure's file.
FigureForm = Literal["png", "svg", "pdf"]

#: The resolution of a PNG file; at the width of a printed column, 3.5 inches, that is 600 and more.
DOTS_PER_INCH = 200

_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "pdf.fonttype": 42,  # TrueType: conferences refuse Type 3, which Matplotlib embeds by default
    "svg.hashsalt": "report",  # a run always makes the same page
    "text.parse_math": False,
    "font.family": ["sans-serif"],
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 8.5,
    "axes.titlesize": 8.5,
    "axes.titlelocation": "left",
    "axes.titley": 1.0,  # without it Matplotlib lays out all tick labels again, to avoid overlaps
    "axes.labelsize": 8.5,
    "axes.labelcolor": MUTED,
    "axes.edgecolor": MUTED,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "grid.color": GRID,
    "grid.linewidth": 0.6,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "text.color": INK,
    "hatch.linewidth": 0.6,
    "hatch.color": MUTED,
    "lines.linewidth": 1.2,
    "legend.frameon": False,
    "legend.fontsize": 8,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
}


@dataclass(frozen=True, slots=True)
class Drawing:
    """A figure for the page or for a file."""

    figure: Figure
    #: Unique in the page; the prefix of the figure's identifiers and the stem of its file.
    name: str
    title: str
    #: What the figure shows, in sentences, for readers who cannot see it.
    alt: str

    @property
    def svg(self) -> str:
        """The figure as an SVG element of the page."""
        with style():
            buffer = io.StringIO()
            self.figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
        return _inline(buffer.getvalue(), self.name, self.title, self.alt)

    def write(self, file: BinaryIO, form: FigureForm) -> None:
        """Write the figure as a file of its own; a run always makes the same file."""
        dated = {"png": {}, "svg": {"Date": None}, "pdf": {"CreationDate": None}}[form]
        with style():
            self.figure.savefig(
                file, format=form, dpi=DOTS_PER_INCH, facecolor=PAPER, metadata={"Title": self.title, **dated}
            )

    def _repr_svg_(self) -> str:
        buffer = io.BytesIO()
        self.write(buffer, "svg")
        return buffer.getvalue().decode()


def style() -> Any:
    """Return the context in which a figure is made and drawn."""
    return rc_context(_STYLE)


def new_figure(height: float, width: float = WIDTH) -> Figure:
    """Return an empty figure; sizes in inches."""
    return Figure(figsize=(width, height))


def time_panels(height: float, above: float, count: int = 1) -> tuple[Figure, list[Axes]]:
    """Return a figure with `count` panels over time, one above the other, and room `above` them; sizes in inches."""
    figure = new_figure(height)
    figure.subplots_adjust(TIME_LEFT, BELOW / height, TIME_RIGHT, 1 - above / height)
    return figure, figure.subplots(count, sharex=True, squeeze=False)[:, 0].tolist()


def over_time(axes: Axes, end_s: float) -> None:
    """Set up the common time axis."""
    axes.set_xlim(0, end_s)
    axes.set_xlabel("seconds since training began", loc="right", fontsize=8)


def annotate(axes: Axes, words: str, at: tuple[float, float], offset: tuple[float, float], **look: Any) -> None:
    """Write words beside a point, `offset` points away from it."""
    axes.annotate(words, at, xytext=offset, textcoords="offset points", **{"fontsize": 8, **look})


def _inline(svg: str, name: str, title: str, alt: str) -> str:
    """Return Matplotlib's SVG document as an element of a page, with unique identifiers and the page's colours."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>\s*", "", svg, flags=re.DOTALL)
    view_box = re.search(r'viewBox="[^"]*"', svg)
    assert view_box, "Matplotlib writes the view box"
    labels = f"<title>{html.escape(title)}</title><desc>{html.escape(alt)}</desc>"
    opening = f'<svg {view_box[0]} role="img" aria-label="{html.escape(title)}" class="figure">{labels}'
    svg = re.sub(r"<svg[^>]*>", lambda _: opening, svg, count=1, flags=re.DOTALL)
    # Groups have the same names in each figure and are not referred to; other identifiers become unique in the page.
    svg = re.sub(r'<g id="[^"]*">', "<g>", svg)
    svg = re.sub(r'((?:\bid|xlink:href)="#?|url\(#)', rf"\g<1>{name}-", svg)
    svg = svg.replace("xlink:href", "href")
    svg = re.sub(r"font-family: [^;\"]*;?|font: ([\d.]+px) [^;\"]*", _font, svg)
    svg = re.sub(r"<[^>]*>", _shortened, svg)  # tags alone: text has the figure's own numbers
    for colour, variable in _VARIABLES.items():
        svg = svg.replace(colour, f"var({variable}, {colour})")
    return re.sub(r">\s+<", "><", re.sub(r"\s*\n\s*", " ", svg))


def _shortened(tag: re.Match[str]) -> str:
    """Return a tag with coordinates of two decimals."""
    return re.sub(r"-?\d+\.\d{3,}", lambda match: f"{float(match[0]):.2f}".rstrip("0").rstrip("."), tag[0])


def _font(match: re.Match[str]) -> str:
    """Return the figure's font size without its font, so that the page's font applies."""
    return f"font-size: {match[1]}" if match[1] else ""


#: The rows of names above the axes. A mark whose name finds no room keeps its line; the page's tables name the mark.
ROWS = 3

ROW_POINTS = 11.0

_LOOK = {"plan": (INK, (0, ())), "network": (PINK, (0, (5, 2))), "event": (MUTED, (0, (1, 2)))}

#: The width of a character of a name, in points; wide fonts take no more on average.
_CHARACTER_POINTS = 4.6


@dataclass(frozen=True, slots=True)
class _Name:
    """The place of a name: its mark and its extent, in points from the left of the axes, and its row."""

    at: float
    left: float
    right: float
    row: int

    def clashes(self, other: _Name) -> bool:
        """Return whether the names overlap, or the line that leads up to one crosses the other."""
        if self.row == other.row:
            return self.left < other.right and other.left < self.right
        low, high = sorted((self, other), key=lambda name: name.row)
        return low.left < high.at < low.right


def draw_marks(axes: Sequence[Axes], marks: Iterable[Mark], end_s: float, names: bool = True) -> None:
    """Draw a line through all `axes` for each mark; with `names`, also their names above the first axes."""
    marks = [mark for mark in marks if 0 <= mark.at_s <= end_s]
    for mark in marks:
        colour, dashes = _LOOK[mark.kind]
        for each in axes:
            each.axvline(
                mark.at_s, color=colour, linewidth=0.8, linestyle=dashes, alpha=0.9 if names else 0.45, zorder=1.5
            )
    if names:
        _write_names(axes[0], marks, end_s)


def _write_names(axes: Axes, marks: Sequence[Mark], end_s: float) -> None:
    figure = axes.get_figure(root=True)
    assert figure is not None
    width = axes.get_position().width * figure.get_figwidth() * 72
    all_at = [mark.at_s / end_s * width for mark in marks]
    placed: list[_Name] = []
    # From right to left, so that a name goes above the names of the marks that it covers.
    for mark, at in reversed(list(zip(marks, all_at, strict=True))):
        for label in filter(None, (mark.label, mark.short)):
            name = _place(at, len(label) * _CHARACTER_POINTS + 8, width, placed, all_at)
            if name is not None:
                break
        else:
            continue
        placed.append(name)
        colour, _ = _LOOK[mark.kind]
        flush = name.left == name.at
        place: dict[str, Any] = {"at": (mark.at_s, 1.0), "xycoords": ("data", "axes fraction")}
        offset, side = (2 if flush else -2, 4 + name.row * ROW_POINTS), "left" if flush else "right"
        annotate(axes, label, offset=offset, **place, ha=side, color=colour, bbox={**BEHIND, "alpha": None})
        line = {"arrowstyle": "-", "color": colour, "linewidth": 0.8, "shrinkA": 0, "shrinkB": 0}
        annotate(axes, "", offset=(0, 11 + name.row * ROW_POINTS), **place, arrowprops=line)


def _place(at: float, length: float, width: float, placed: Sequence[_Name], all_at: Sequence[float]) -> _Name | None:
    """Return the lowest place for a name, right of its mark or else left of it; None where it finds no room.

    A name that covers other marks on its left goes to the top row, so that their names find room below.
    """
    runs_over = any(at - length < other < at for other in all_at)
    right = [_Name(at, at, at + length, row) for row in range(ROWS) if at + length <= width + 10]
    left = [_Name(at, at - length, at, row) for row in range(ROWS - 1 if runs_over else 0, ROWS) if at >= length]
    return next((name for name in right + left if not any(name.clashes(other) for other in placed)), None)
