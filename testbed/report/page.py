"""Pages made of runs: one self-contained HTML file each, which opens from anywhere and fetches nothing."""

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
from testbed.report import conducted, tables
from testbed.report.comparison import comparison_values
from testbed.report.figures.run import draw_run
from testbed.report.opening import opening
from testbed.report.record import RunRecord
from testbed.report.replanning import score as score_of
from testbed.telemetry.round_span import MEANING

REPORT = "report.html"


def write_report(run: Path) -> Path:
    """Write `report.html` into a run's directory and return its path. NotARun when `run` is none."""
    return write_page(RunRecord.read(run))


def write_page(record: RunRecord) -> Path:
    """Write a run's page into its directory and return its path."""
    target = record.path / REPORT
    write_text(target, _render("run.html.j2", _run_values(record)))
    return target


def write_comparison(runs: Sequence[Path], target: Path) -> Path:
    """Write the page of several runs side by side to `target` and return it. NotARun when one of `runs` is none."""
    return write_side_by_side([RunRecord.read(run) for run in runs], target)


def write_side_by_side(records: Sequence[RunRecord], target: Path) -> Path:
    """Write the page of several runs side by side to `target` and return it."""
    target.parent.mkdir(parents=True, exist_ok=True)
    write_text(target, _render("comparison.html.j2", comparison_values(records)))
    return target


def _render(template: str, values: dict[str, Any]) -> str:
    return _environment().get_template(template).render(values)


@cache
def _environment() -> Environment:
    """Return what compiles the templates, the same at each call: compiling those of a page takes 0.02 s."""
    environment = Environment(
        loader=PackageLoader("testbed.report", "templates"),
        autoescape=select_autoescape(["html.j2"]),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["first_upper"] = lambda words: words[:1].upper() + words[1:]
    environment.filters["code"] = _with_code
    environment.filters["svg"] = lambda drawing: Markup(drawing.svg)
    return environment


def _with_code(words: str) -> Markup:
    """A sentence whose commands, in backquotes, are set as code."""
    parts = words.split("`")
    return Markup("").join(
        Markup("<code>{}</code>").format(part) if odd % 2 else part for odd, part in enumerate(parts)
    )


def _run_values(record: RunRecord) -> dict[str, Any]:
    score = score_of(record) if record.estimated else None
    return {
        "title": record.id,
        "record": record,
        "when": _when(record),
        "badge": tables.badge(record),
        "opening": opening(record, score),
        "round_meaning": MEANING,
        "key_figures": tables.key_figures(record),
        **draw_run(record, score),
        "known": score.known_sentences() if score else [],
        "foreseen": score.done_sentences() if score else [],
        "swaps": tables.swaps(record, score),
        "considered": tables.considered(record),
        "choices": conducted.choices(record),
        "judgements": conducted.judgements(record),
        "learned": conducted.learned(record),
        "events": tables.events(record),
        "link_table": tables.links(record),
        "members": tables.members(record),
        "facts": tables.facts(record),
        "inputs": {normpath(name): content for name, content in (record.manifest.get("inputs") or {}).items()},
    }


def _when(record: RunRecord) -> str:
    started = record.manifest.get("started_s") or record.zero_s
    return f"{datetime.fromtimestamp(started, UTC):%-d %B %Y, %H:%M} UTC"
