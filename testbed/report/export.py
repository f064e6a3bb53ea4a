"""Exports runs to files for papers and other programs: the page's figures, tables, TensorBoard curves, OTLP spans.

Several runs are exported together: figures that show them side by side, and tables with the rows of all runs and a
column `run`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from testbed.atomic_file import replacing, write_text
from testbed.report import frames
from testbed.report.comparison import drawings_of, figures_by_run, labels
from testbed.report.figures.canvas import Drawing, FigureForm
from testbed.report.frames import TableForm
from testbed.report.page import figures_of, score_of
from testbed.report.record import RunRecord
from testbed.telemetry import tensorboard
from testbed.telemetry.tensorboard import Scalar

if TYPE_CHECKING:
    from pandas import DataFrame

OtherForm = Literal["tensorboard", "otlp"]
Form = FigureForm | TableForm | OtherForm

FIGURE_FORMS: tuple[FigureForm, ...] = get_args(FigureForm)
TABLE_FORMS: tuple[TableForm, ...] = get_args(TableForm)
OTHER_FORMS: tuple[OtherForm, ...] = get_args(OtherForm)

#: The folder for the curves of TensorBoard, with a folder for each run.
CURVES = "tensorboard"


def drawings(record: RunRecord) -> list[Drawing]:
    """Return the figures of a run's page, in its order."""
    return [drawing for drawing in figures_of(record, score_of(record)).values() if drawing]


def export(records: Sequence[RunRecord], target: Path, forms: Sequence[Form]) -> list[Path]:
    """Write runs in these forms into a folder, which is made if it is missing. Return the written files, in order.

    Raises:
        PackageMissing: A form needs pandas or pyarrow, which is not installed; nothing was written.
        OSError: A file could not be written.
    """
    of_figures = [form for form in FIGURE_FORMS if form in forms]
    of_tables = [kind for kind in TABLE_FORMS if kind in forms]
    for kind in of_tables:
        frames.check(kind)
    target.mkdir(parents=True, exist_ok=True)
    written = []
    for drawing in _figures(records) if of_figures else ():
        for form in of_figures:
            written.append(target / f"{drawing.name}.{form}")
            with replacing(written[-1]) as file:
                drawing.write(file, form)
    for name, table in (_tables(records) if of_tables else {}).items():
        for kind in of_tables:
            written.append(target / f"{name}.{kind}")
            with replacing(written[-1]) as file:
                frames.write(table, file, kind)
    for record in records:
        if "tensorboard" in forms:
            written.append(_write_curves(record, _curves_folder(target, record)))
        if "otlp" in forms:
            root = Span(f"run {record.id}", record.zero_s, record.zero_s + record.end_s, {"policy": record.policy})
            written.append(target / f"{_file_name(record)}.otlp.json")
            write_text(written[-1], otlp(record.id, root, _spans(record)))
    return written


def remove_links(target: Path, record: RunRecord) -> None:
    """Remove the links in a run's own folder for exports: the run may be a stranger's, and a write follows links."""
    for folder in (target, target / CURVES, _curves_folder(target, record)):
        for each in [*folder.iterdir()] if folder.is_dir() else []:
            if each.is_symlink():
                each.unlink()


def _curves_folder(target: Path, record: RunRecord) -> Path:
    return target / CURVES / _file_name(record)


def _file_name(record: RunRecord) -> str:
    """Return a run's id as a file's name; a stranger's manifest may have a path."""
    return record.id.replace("/", "-")


def _write_curves(record: RunRecord, folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / tensorboard.file_name(record.zero_s)
    with replacing(file) as stream:
        tensorboard.write_scalars(stream, record.zero_s, _scalars(record))
    return file


def _spans(record: RunRecord) -> Iterator[Span]:
    """Yield a span for each round, and for each swap from its request until it is in force."""
    for one in record.rounds:
        figures = {"epoch": one.epoch, "lost_updates": one.lost, "duplicated_updates": one.duplicated}
        yield Span(f"round {one.number}", one.entered_s, one.finished_s, figures)
    for number, swap in enumerate(record.summary.get("swaps", ())):
        if swap.get("active_s") is not None and swap.get("requested_s") is not None:
            began_s, ended_s = (record.zero_s + swap[moment] for moment in ("requested_s", "active_s"))
            pause = {} if swap.get("pause_ms") is None else {"pause_ms": float(swap["pause_ms"])}
            yield Span(f"{swap['kind']} swap {number}", began_s, ended_s, {"kind": swap["kind"], **pause})


def _scalars(record: RunRecord) -> Iterator[Scalar]:
    """Yield the metrics of training by round, and the metrics that programs printed, numbered as they came."""
    for one in record.rounds:
        yield Scalar("round_seconds", one.number, one.finished_s, one.seconds)
        for name, means in record.means.items():
            if one.number in means:
                yield Scalar(name, one.number, one.finished_s, means[one.number])
    for name, programs in record.curves.items():
        for program, (times, values) in programs.items():
            for step, (at_s, value) in enumerate(zip(times, values, strict=True)):
                yield Scalar(f"{name}/{program}", step, record.zero_s + at_s, value)


def _figures(records: Sequence[RunRecord]) -> list[Drawing]:
    if len(records) == 1:
        return drawings(records[0])
    return drawings_of(dict(zip(labels(records), records, strict=True)))


def _tables(records: Sequence[RunRecord]) -> Mapping[str, DataFrame]:
    if len(records) == 1:
        return {name: table(records[0]) for name, table in frames.TABLES.items()}
    runs = dict(zip(labels(records), records, strict=True))
    return {"comparison": frames.frame_of((), figures_by_run(records))} | {
        name: frames.together({label: table(record) for label, record in runs.items()})
        for name, table in frames.TABLES.items()
    }


#: `SPAN_KIND_INTERNAL`: an operation within one service.
INTERNAL = 1

#: Bytes of a trace's and of a span's identifier.
TRACE_ID_BYTES, SPAN_ID_BYTES = 16, 8


@dataclass(frozen=True, slots=True)
class Span:
    """An operation from `began_s` to `ended_s` (Unix time)."""

    #: Unique within its trace.
    name: str
    began_s: float
    ended_s: float
    attributes: Mapping[str, str | int | float] = field(default_factory=dict)


def otlp(trace: str, root: Span, spans: Iterable[Span]) -> str:
    """Return the trace of this name in OTLP's JSON, which OpenTelemetry's collector reads.

    The other spans are children of `root`. Identifiers are hashes of names: a trace that is written twice keeps them.
    """
    told = [_span(trace, root, None), *(_span(trace, span, root) for span in spans)]
    resource = {"attributes": list(_attributes({"service.name": "testbed", "service.instance.id": trace}))}
    scoped = {"scope": {"name": "testbed"}, "spans": told}
    return json.dumps({"resourceSpans": [{"resource": resource, "scopeSpans": [scoped]}]})


def _span(trace: str, span: Span, parent: Span | None) -> dict[str, Any]:
    of_parent = {} if parent is None else {"parentSpanId": _identifier(SPAN_ID_BYTES, trace, parent.name)}
    return {
        "traceId": _identifier(TRACE_ID_BYTES, trace),
        "spanId": _identifier(SPAN_ID_BYTES, trace, span.name),
        **of_parent,
        "name": span.name,
        "kind": INTERNAL,
        "startTimeUnixNano": _nanoseconds(span.began_s),
        "endTimeUnixNano": _nanoseconds(span.ended_s),
        "attributes": list(_attributes(span.attributes)),
    }


def _identifier(size: int, *names: str) -> str:
    return sha256("\0".join(names).encode()).hexdigest()[: 2 * size]


def _nanoseconds(unix_s: float) -> str:
    """Return nanoseconds as a string: JSON numbers lose the last digits of 64 bits."""
    return str(round(unix_s * 1e9))


def _attributes(values: Mapping[str, str | int | float]) -> Iterator[dict[str, Any]]:
    for key, value in values.items():
        if isinstance(value, int):
            yield {"key": key, "value": {"intValue": str(value)}}
        else:
            yield {"key": key, "value": {"doubleValue" if isinstance(value, float) else "stringValue": value}}
