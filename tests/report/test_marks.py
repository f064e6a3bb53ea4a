"""Marks of swaps and events on a time axis."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from matplotlib.figure import Figure

from testbed.report.figures.canvas import Drawing, draw_marks, new_figure, style
from testbed.report.figures.links import draw_links
from testbed.report.figures.rounds import draw_rounds
from testbed.report.figures.training import draw_training
from testbed.report.record import Mark, RunRecord
from tests.report.runs import ZERO_S, build_run

pytestmark = pytest.mark.pure


def _names(marks: list[Mark]) -> list[tuple[str, float, float, float]]:
    """Return (name, left, right, bottom) of each name over a figure with these marks, in pixels."""
    figure = Figure(figsize=(10, 2))
    axes = figure.subplots()
    axes.set_xlim(0, 100)
    draw_marks([axes], marks, 100)
    figure.canvas.draw()  # type: ignore[attr-defined]
    boxes = [(text.get_text(), text.get_window_extent()) for text in axes.texts if text.get_text()]
    return [(name, box.x0, box.x1, box.y0) for name, box in boxes]


def test_names_do_not_run_into_each_other() -> None:
    marks = [Mark(at, "event", f"paris-tokyo down {at}") for at in (10, 12, 14, 50, 97, 99)]
    found = _names(marks)
    assert {name for name, *_ in found} == {mark.label for mark in marks}
    for one in found:
        for other in found:
            apart = one[2] <= other[1] or other[2] <= one[1] or abs(one[3] - other[3]) > 8
            assert one is other or apart, (one, other)


def test_names_without_room_are_left_out_but_not_their_lines() -> None:
    figure = Figure()
    axes = figure.subplots()
    draw_marks([axes], [Mark(50 + i / 10, "plan", f"plan {i}") for i in range(40)], 100)
    assert len(axes.lines) == 40
    assert 1 <= sum(bool(text.get_text()) for text in axes.texts) < 40


def test_what_is_outside_of_the_time_shown_is_not_drawn() -> None:
    figure = Figure()
    axes = figure.subplots()
    draw_marks([axes], [Mark(-3, "event", "before"), Mark(120, "event", "after")], 100)
    assert not axes.lines
    assert not axes.texts


def test_a_run_that_lasted_no_time_has_no_figures_over_time(tmp_path: Path) -> None:
    """As one whose clock was set back, or a command that printed figures and failed at once."""
    run = build_run(tmp_path / "run", rounds=20)
    manifest = json.loads((run / "manifest.json").read_text())
    times = {"training_started_s": ZERO_S + 1e6, "ended_s": ZERO_S + 1e6}
    (run / "manifest.json").write_text(json.dumps({**manifest, **times}))
    for program in ("reports", "prints"):
        record = RunRecord.read(run)
        assert record.rounds and record.end_s == 0, program
        assert (draw_training(record), draw_rounds(record), draw_links(record)) == (None, None, None), program
        lines = [{"at_s": float(number), "program": "a", "values": {"loss": 1.0}} for number in (1, 2)]
        (run / "curves.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))


def test_a_figure_of_the_page_keeps_the_digits_of_its_text() -> None:
    """Ticks of 5 and 15 ms were both written as 0.01, and a loss of 0.00456 as 0."""
    with style():
        figure = new_figure(2.0)
        axes = figure.subplots()
        axes.plot([0, 1 / 3, 1], [0, 0.0123456, 0.02])
        axes.set_yticks([0, 0.005, 0.015])
        shown = Drawing(figure, "fast", "Fast rounds", "The loss goes to 0.00456.").svg
    assert ">0.005<" in shown and ">0.015<" in shown and "0.00456" in shown
    tags = re.sub(r">[^<]*<", "><", shown)
    assert re.search(r"\d\.\d\d\b", tags) and not re.search(r"\d\.\d{3}", tags)
