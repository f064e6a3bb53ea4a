"""The load of the host's processors over time."""

from __future__ import annotations

from statistics import median

from matplotlib.ticker import PercentFormatter

from testbed.report.figures.canvas import BLUE, MUTED, ORANGE, PAPER, Drawing, over_time, style, time_panels
from testbed.report.figures.marks import draw_marks
from testbed.report.record import RunRecord
from testbed.run.conclusion.verdict import CPU_BUSY


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
        axes.annotate(
            f"starved above {CPU_BUSY:.0%}",
            (1.0, CPU_BUSY),
            xycoords=("axes fraction", "data"),
            xytext=(-2, -3),
            textcoords="offset points",
            ha="right",
            va="top",
            fontsize=8,
            color=ORANGE,
            bbox={"facecolor": PAPER, "edgecolor": "none", "pad": 0.6, "alpha": 0.75},
        )
        axes.set_ylim(0, 1.03)
        axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
        axes.set_ylabel("busy share of processors", color=MUTED)
        over_time(axes, record.end_s)
        draw_marks([axes], record.marks, record.end_s, names=False)
        share = f"above {CPU_BUSY:.0%} in {starved:.0%} of samples"
        alt = f"Busy: {median(busy):.0%} at the median, {max(busy):.0%} at most, {share}."
        return Drawing(figure, "host", "Host processors over time", alt)
