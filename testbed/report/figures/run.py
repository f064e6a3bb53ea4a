"""All figures of one run."""

from __future__ import annotations

from testbed.report.figures.canvas import Drawing
from testbed.report.figures.drift import draw_drift
from testbed.report.figures.foresight import draw_foresight
from testbed.report.figures.host import draw_host
from testbed.report.figures.links import draw_links
from testbed.report.figures.network import draw_network
from testbed.report.figures.rounds import draw_rounds
from testbed.report.figures.training import draw_training
from testbed.report.figures.waiting import draw_time_spent, draw_waiting
from testbed.report.record import RunRecord
from testbed.report.replanning import Score


def draw_run(record: RunRecord, score: Score | None) -> dict[str, Drawing | None]:
    """By what they show; `score` is of a run whose controller estimated links, which alone has a foresight."""
    return {
        "training": draw_training(record),
        "drift": draw_drift(record),
        "rounds": draw_rounds(record),
        "network": draw_network(record),
        "links": draw_links(record),
        "waiting": draw_waiting(record),
        "time_spent": draw_time_spent(record),
        "host": draw_host(record),
        "foresight": draw_foresight(record, score) if score else None,
    }
