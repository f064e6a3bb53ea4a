"""Drawing for a page that is read in light and in dark, and for papers.

Figures are drawn by Matplotlib in the light palette. In the page they are inline SVG, where each of its colours becomes
a CSS variable with that colour as its fallback, so that the page's style sheet chooses and a figure copied out of the
page still looks right. As files they are what Matplotlib writes.
"""

from __future__ import annotations

import html
import io
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, BinaryIO, Literal

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

INK, MUTED, GRID, PAPER = "#1f2328", "#6a737d", "#e1e4e8", "#fffffe"
BLUE, ORANGE, GREEN, PINK, YELLOW, SKY = "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9"

#: Okabe and Ito's colours, told apart by people with any of the common colour deficiencies.
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

#: Width of a figure in inches; at 72 points an inch the text keeps its size relative to the page's column.
WIDTH = 10.8

#: Left and right edge of the axes of every figure over time, so that moments align down the page.
TIME_LEFT, TIME_RIGHT = 0.062, 0.985

#: The forms of a file that has a figure.
FigureForm = Literal["png", "svg", "pdf"]

#: Of a PNG file; at the width of a column of print, 3.5 inches, that is 600 and more.
DOTS_PER_INCH = 200

_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "pdf.fonttype": 42,  # TrueType: conferences refuse Type 3, which Matplotlib embeds by default
    "svg.hashsalt": "report",  # the same run makes the same page
    "text.parse_math": False,
    "font.family": ["sans-serif"],
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 8.5,
    "axes.titlesize": 8.5,
    "axes.titlelocation": "left",
    "axes.titley": 1.0,  # else Matplotlib lays out every tick label once more, to see whether one is in the way
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
    """A figure for the page, or for a file. `alt` says in words what it shows, for readers that can't see it."""

    figure: Figure
    name: str
    title: str
    alt: str

    @property
    def svg(self) -> str:
        """It as an element of the page, in which `name` is unique."""
        with style():
            buffer = io.StringIO()
            self.figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
        return _inline(buffer.getvalue(), self.name, self.title, self.alt)

    def write(self, file: BinaryIO, form: FigureForm) -> None:
        """Write it as a file that stands alone; the same run makes the same file."""
        dated = {"png": {}, "svg": {"Date": None}, "pdf": {"CreationDate": None}}[form]
        with style():
            self.figure.savefig(
                file, format=form, dpi=DOTS_PER_INCH, facecolor=PAPER, metadata={"Title": self.title, **dated}
            )

    def _repr_svg_(self) -> str:
        """What a notebook shows."""
        buffer = io.BytesIO()
        self.write(buffer, "svg")
        return buffer.getvalue().decode()


def style() -> Any:
    """The context in which a figure is made and drawn."""
    return rc_context(_STYLE)


def new_figure(height: float, width: float = WIDTH) -> Figure:
    """An empty figure; sizes in inches."""
    return Figure(figsize=(width, height))


def over_time(axes: Axes, end_s: float) -> None:
    """The common time axis."""
    axes.set_xlim(0, end_s)
    axes.set_xlabel("seconds since training began", loc="right", fontsize=8)


def _inline(svg: str, name: str, title: str, alt: str) -> str:
    """Matplotlib's SVG document as an element of an HTML page: no prologue, own identifiers, the page's colours."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>\s*", "", svg, flags=re.DOTALL)
    view_box = re.search(r'viewBox="[^"]*"', svg)
    assert view_box, "Matplotlib writes the view box"
    labels = f"<title>{html.escape(title)}</title><desc>{html.escape(alt)}</desc>"
    opening = f'<svg {view_box[0]} role="img" aria-label="{html.escape(title)}" class="figure">{labels}'
    svg = re.sub(r"<svg[^>]*>", lambda _: opening, svg, count=1, flags=re.DOTALL)
    # Groups are named in each figure alike; only what is referred to needs a name, and one of its own in the page.
    svg = re.sub(r'<g id="[^"]*">', "<g>", svg)
    svg = re.sub(r'((?:\bid|xlink:href)="#?|url\(#)', rf"\g<1>{name}-", svg)
    svg = svg.replace("xlink:href", "href")
    svg = re.sub(r"font-family: [^;\"]*;?|font: ([\d.]+px) [^;\"]*", _font, svg)
    svg = re.sub(r"-?\d+\.\d{3,}", lambda match: f"{float(match[0]):.2f}".rstrip("0").rstrip("."), svg)
    for colour, variable in _VARIABLES.items():
        svg = svg.replace(colour, f"var({variable}, {colour})")
    return re.sub(r">\s+<", "><", re.sub(r"\s*\n\s*", " ", svg))


def _font(match: re.Match[str]) -> str:
    """The page's own font, in the figure's size."""
    return f"font-size: {match[1]}" if match[1] else ""
