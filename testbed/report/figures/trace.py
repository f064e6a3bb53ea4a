"""A trace as a picture file: a panel for each column."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from testbed.report.figures.canvas import BLUE, PAPER, TIME_RIGHT, new_figure, style
from testbed.trace.csv import columns_of
from testbed.trace.trace import Trace

_PANEL_HEIGHT, _TOP, _BOTTOM = 1.8, 0.4, 0.5


def save_trace(trace: Trace, title: str, path: Path) -> None:
    """Draw one lap of the trace into a PNG file. OSError when it cannot be written."""
    columns = list(columns_of(trace))
    height = len(columns) * _PANEL_HEIGHT + _TOP + _BOTTOM
    with style():
        figure = new_figure(height)
        figure.subplots_adjust(0.075, _BOTTOM / height, TIME_RIGHT, 1 - _TOP / height)
        panels = figure.subplots(len(columns), sharex=True, squeeze=False)[:, 0]
        panels[0].set_title(title)
        for axes, column in zip(panels, columns, strict=True):
            values = [np.nan if value is None else value for value in column.values]
            axes.stairs(values, column.edges_s, baseline=None, color=BLUE)
            axes.set_ylabel(column.name)
            axes.set_ylim(0, column.most * 1.05 or 1.0)
            axes.margins(x=0)
        panels[-1].set_xlabel("seconds", loc="right")
        figure.savefig(path, format="png", dpi=150, facecolor=PAPER)
