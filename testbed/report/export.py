"""Runs as files for papers and for other programs: the page's figures, the records as tables, and curves.

Of several runs the figures are those that set them side by side, and a table has the rows of all, with a column that
says of which run each is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

from testbed.atomic_file import replacing
from testbed.report import frames
from testbed.report.comparison import drawings_of, labels
from testbed.report.figures.canvas import Drawing, FigureForm
from testbed.report.figures.run import draw_run
from testbed.report.record import RunRecord
from testbed.report.replanning import score as score_of
from testbed.telemetry import tensorboard
from testbed.telemetry.tensorboard import Scalar

if TYPE_CHECKING:
    from pandas import DataFrame

TableForm = Literal["csv", "parquet"]
CurveForm = Literal["tensorboard"]
Form = FigureForm | TableForm | CurveForm

FIGURE_FORMS: tuple[FigureForm, ...] = get_args(FigureForm)
TABLE_FORMS: tuple[TableForm, ...] = get_args(TableForm)
CURVE_FORMS: tuple[CurveForm, ...] = get_args(CurveForm)


def drawings(record: RunRecord) -> list[Drawing]:
    """The figures of a run's page, in its order."""
    drawn = draw_run(record, score_of(record) if record.estimated else None)
    return [drawing for drawing in drawn.values() if drawing]


def export(records: Sequence[RunRecord], target: Path, forms: Sequence[Form]) -> list[Path]:
    """Write what these runs come to into the folder `target`, in each form; the files, in order.

    PandasMissing or PyarrowMissing, before anything is written, where a form needs what is not installed; OSError when
    a file can't be written.
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
    for record in records if "tensorboard" in forms else ():
        written.append(target / "tensorboard" / record.id / tensorboard.file_name(record.zero_s))
        written[-1].parent.mkdir(parents=True, exist_ok=True)
        with replacing(written[-1]) as file:
            tensorboard.write_scalars(file, record.zero_s, _scalars(record))
    return written


def _scalars(record: RunRecord) -> Iterator[Scalar]:
    """The curves of training by round, and those that programs gave of themselves by how many they had given."""
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
    return {
        name: frames.together({label: table(record) for label, record in runs.items()})
        for name, table in frames.TABLES.items()
    }
