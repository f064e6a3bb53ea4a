"""Writes the page of a run, and of several runs side by side: one HTML file each, which fetches nothing."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from posixpath import normpath
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape
from markupsafe import Markup

from testbed.atomic_file import write_text
from testbed.report import tables
from testbed.report.comparison import comparison_values
from testbed.report.figures.canvas import Drawing
from testbed.report.figures.links import draw_links
from testbed.report.figures.network import draw_network
from testbed.report.figures.rounds import draw_foresight, draw_rounds
from testbed.report.figures.training import draw_drift, draw_training
from testbed.report.figures.waiting import draw_host, draw_time_spent, draw_waiting
from testbed.report.opening import badge, key_figures, opening
from testbed.report.record import RunRecord
from testbed.report.replanning import score
from testbed.report.score import Score
from testbed.telemetry.round_span import MEANING

REPORT = "report.html"


def write_report(run: Path) -> Path:
    """Write `report.html` into a run's directory and return its path. Raises: NotARun: a run did not write it."""
    return write_page(RunRecord.read(run))


def write_page(record: RunRecord) -> Path:
    """Write `report.html` into a run's directory and return its path."""
    target = record.path / REPORT
    page = _render("run.html.j2", _run_values(record))
    if target.is_symlink():  # a stranger's run may have a link here, which a write would follow
        target.unlink()
    write_text(target, page)
    return target


def write_comparison(records: Sequence[RunRecord], target: Path) -> Path:
    """Write the page of several runs side by side to `target` and return it."""
    target.parent.mkdir(parents=True, exist_ok=True)
    write_text(target, _render("comparison.html.j2", comparison_values(records)))
    return target


def score_of(record: RunRecord) -> Score | None:
    """Return the score of a run's re-planning; None where its controller estimated no rates of links."""
    return score(record) if record.estimated else None


def figures_of(record: RunRecord, score: Score | None) -> dict[str, Drawing | None]:
    """Return the figures of a run's page by name, in order; None where there is nothing to draw."""
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


def _render(template: str, values: dict[str, Any]) -> str:
    return _environment().get_template(template).render(values)


@cache
def _environment() -> Environment:
    """Return the environment of the templates, always the same one: compiling a page's templates takes 0.02 s."""
    environment = Environment(
        loader=PackageLoader("testbed.report", "templates"),
        autoescape=select_autoescape(["html.j2"]),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["code"] = _with_code
    environment.filters["svg"] = lambda drawing: Markup(drawing.svg)
    return environment


def _with_code(words: str) -> Markup:
    parts = words.split("`")
    return Markup("").join(
        Markup("<code>{}</code>").format(part) if odd % 2 else part for odd, part in enumerate(parts)
    )


def _run_values(record: RunRecord) -> dict[str, Any]:
    score = score_of(record)
    return {
        "title": record.id,
        "record": record,
        "when": _when(record),
        "badge": badge(record),
        "opening": opening(record, score),
        "round_meaning": MEANING,
        "key_figures": key_figures(record),
        **figures_of(record, score),
        "known": score.known_sentences() if score else [],
        "foreseen": score.done_sentences() if score else [],
        "swaps": tables.swaps(record, score),
        "considered": tables.considered(record),
        "choices": tables.choices(record),
        "judgements": tables.judgements(record),
        "learned": tables.learned(record),
        "events": tables.events(record),
        "link_table": tables.links(record),
        "members": tables.members(record),
        "facts": tables.facts(record),
        "inputs": {normpath(name): content for name, content in (record.manifest.get("inputs") or {}).items()},
    }


def _when(record: RunRecord) -> str:
    started = record.manifest.get("started_s") or record.zero_s
    return f"{datetime.fromtimestamp(started, UTC):%-d %B %Y, %H:%M} UTC"
