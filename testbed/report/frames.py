"""A run's records as pandas frames, for whoever goes on computing with them, and frames as files. pandas is an extra.

Times are seconds since training began, rates bit/s, sizes bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, BinaryIO, Literal

from testbed.errors import CANNOT
from testbed.report.record import RunRecord

if TYPE_CHECKING:
    from pandas import DataFrame


class PandasMissing(ImportError):
    """Tables need pandas, which is not installed; the text says how it comes to be."""

    exit_code = CANNOT


class PyarrowMissing(ImportError):
    """Parquet needs pyarrow, which is not installed; the text says how it comes to be."""

    exit_code = CANNOT


def rounds(record: RunRecord) -> DataFrame:
    """The rounds that all members reported, by their number.

    `seconds` runs from when the last member entered one (`entered_s`) to when the last one finished it
    (`finished_s`); `lost` and `duplicated` count updates. A column for each metric has its mean over members.
    """
    frame = _frame(
        ("round", "epoch", "entered_s", "finished_s", "seconds", "lost", "duplicated"),
        (
            {
                "round": one.number,
                "epoch": one.epoch,
                "entered_s": record.since(one.entered_s),
                "finished_s": record.since(one.finished_s),
                "seconds": one.seconds,
                "lost": one.lost,
                "duplicated": one.duplicated,
            }
            for one in record.rounds
        ),
    ).set_index("round")
    metrics = _frame(("round",), ({"round": report.round, **report.metrics} for report in record.reports))
    return frame.join(metrics.groupby("round").mean())


def reports(record: RunRecord) -> DataFrame:
    """Each round as each member saw it: when it synchronized, what it computed and sent, and its metrics."""
    columns = ("member", "round", "epoch", "started_s", "finished_s", "compute_s", "paced_s", "late_s")
    counted = ("sent_bytes", "received_bytes", "lost", "duplicated")
    rows = (
        {name: getattr(report, name) for name in (*columns, *counted)}
        | {"started_s": record.since(report.started_s), "finished_s": record.since(report.finished_s)}
        | dict(report.metrics)
        for report in record.reports
    )
    return _frame((*columns, *counted), rows)


def links(record: RunRecord) -> DataFrame:
    """The states that links had: one holds from `at_s` to the link's next. `there` is False once it was removed."""
    columns = ("link", "at_s", "rate_bps", "delay_s", "loss", "up", "there")
    rows = (
        {"link": link, **{name: getattr(state, name) for name in columns[1:]}}
        for link, states in record.states.items()
        for state in states
    )
    return _frame(columns, rows)


def traffic(record: RunRecord) -> DataFrame:
    """What had arrived over each link by `at_s`, once a second: `bytes` since the link was made, as the kernel counted
    them, and `busy_s`, the seconds for which its queue had been backlogged."""
    rows = (
        {"link": link, "at_s": sample.at_s, "bytes": count, "busy_s": sample.busy_s.get(link)}
        for sample in record.samples
        for link, count in sample.bytes.items()
    )
    return _frame(("link", "at_s", "bytes", "busy_s"), rows)


def events(record: RunRecord) -> DataFrame:
    """What happened to the run, in order: plans and networks that came into force, and the experiment's events."""
    rows = ({"at_s": mark.at_s, "kind": mark.kind, "label": mark.label} for mark in record.marks)
    return _frame(("at_s", "kind", "label"), rows)


#: The tables by their names.
TABLES: Mapping[str, Callable[[RunRecord], DataFrame]] = {
    "rounds": rounds,
    "reports": reports,
    "links": links,
    "traffic": traffic,
    "events": events,
}


def together(of_runs: Mapping[str, DataFrame]) -> DataFrame:
    """The rows of several runs' frames, below one another, with the run that each is of in the first column, `run`."""
    found = [frame.reset_index() if frame.index.name else frame for frame in of_runs.values()]
    for label, frame in zip(of_runs, found, strict=True):
        frame.insert(0, "run", label)
    return _pandas().concat(found, ignore_index=True)


def frame(rows: Sequence[Mapping[str, Any]]) -> DataFrame:
    """Rows as a table, whose columns are those of the first."""
    return _frame(tuple(rows[0]) if rows else (), rows)


def check(form: Literal["csv", "parquet"]) -> None:
    """PandasMissing or PyarrowMissing where a frame could not be written in this form."""
    _pandas()
    if form == "parquet":
        try:
            import pyarrow  # noqa: F401
        except ImportError as error:
            raise PyarrowMissing(
                "Parquet files need pyarrow, and pyarrow is missing: pip install 'wan-testbed[parquet]', or write CSV"
            ) from error


def write(frame: DataFrame, file: BinaryIO, form: Literal["csv", "parquet"]) -> None:
    """Write a frame, its index as the first column where that has a name."""
    if form == "csv":
        frame.to_csv(file, index=frame.index.name is not None)
    else:
        (frame.reset_index() if frame.index.name else frame).to_parquet(file, index=False)


def _frame(columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> DataFrame:
    """With these columns first, also where there is no row, and then what else rows have."""
    found = list(rows)
    others = dict.fromkeys(name for row in found for name in row if name not in columns)
    return _pandas().DataFrame(found, columns=[*columns, *others])


def _pandas() -> Any:
    try:
        import pandas
    except ImportError as error:
        raise PandasMissing(
            "tables are pandas frames, and pandas is missing: pip install 'wan-testbed[tables]'"
        ) from error
    return pandas
