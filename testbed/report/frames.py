"""A run's records as pandas frames, and frames as files. pandas is an extra.

Times are seconds since training began, rates bit/s, sizes bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, BinaryIO, Literal

from testbed.errors import CANNOT
from testbed.protocol import Report
from testbed.report.record import RunRecord

if TYPE_CHECKING:
    from pandas import DataFrame

TableForm = Literal["csv", "parquet"]

#: The column of several runs' rows that has the run's label.
RUN = "run"


class PackageMissing(ImportError):
    """Tables need a package that is not installed; the message says how to install it."""

    exit_code = CANNOT


def rounds(record: RunRecord) -> DataFrame:
    """Return the rounds that all members reported, by number.

    `seconds` counts from the last member's entry (`entered_s`) to the last member's end (`finished_s`); `lost` and
    `duplicated` count updates. Each metric has a column with its mean over members.
    """
    columns = ("epoch", "entered_s", "finished_s", "seconds", "lost", "duplicated")
    rows = (
        {"round": one.number}
        | {name: getattr(one, name) for name in columns}
        | {"entered_s": record.since(one.entered_s), "finished_s": record.since(one.finished_s)}
        for one in record.rounds
    )
    frame = frame_of(("round", *columns), rows).set_index("round")
    metrics = ({"round": report.round, **_metrics(report, ("round", *columns))} for report in record.reports)
    return frame.join(frame_of(("round",), metrics).groupby("round").mean())


def reports(record: RunRecord) -> DataFrame:
    """Return each member's report of each round: when it synchronized, how long it computed, its bytes and metrics."""
    columns = ("member", "round", "epoch", "started_s", "finished_s", "compute_s", "paced_s", "late_s")
    counted = ("sent_bytes", "received_bytes", "lost", "duplicated")
    rows = (
        {name: getattr(report, name) for name in (*columns, *counted)}
        | {"started_s": record.since(report.started_s), "finished_s": record.since(report.finished_s)}
        | _metrics(report, (*columns, *counted))
        for report in record.reports
    )
    return frame_of((*columns, *counted), rows)


def _metrics(report: Report, columns: Sequence[str]) -> dict[str, float | None]:
    """Return a report's metrics. One with the name of a column, such as `epoch` or `run`, has `metric_` before it."""
    return {f"metric_{name}" if name in (*columns, RUN) else name: value for name, value in report.metrics.items()}


def links(record: RunRecord) -> DataFrame:
    """Return the states of links, each from `at_s` to the link's next; `there` is False once the link was removed."""
    columns = ("link", "at_s", "rate_bps", "delay_s", "loss", "up", "there")
    rows = (
        {"link": link, **{name: getattr(state, name) for name in columns[1:]}}
        for link, states in record.states.items()
        for state in states
    )
    return frame_of(columns, rows)


def traffic(record: RunRecord) -> DataFrame:
    """Return the counters of each link, once a second.

    `bytes` counts what had arrived since the link was made, by the kernel's count, and `busy_s` the seconds for which
    its queue had been backlogged.
    """
    rows = (
        {"link": link, "at_s": sample.at_s, "bytes": count, "busy_s": sample.busy_s.get(link)}
        for sample in record.samples
        for link, count in sample.bytes.items()
    )
    return frame_of(("link", "at_s", "bytes", "busy_s"), rows)


def events(record: RunRecord) -> DataFrame:
    """Return a row for each swap of a plan or network and for each event, in order of time."""
    rows = ({"at_s": mark.at_s, "kind": mark.kind, "label": mark.label} for mark in record.marks)
    return frame_of(("at_s", "kind", "label"), rows)


#: The tables by their names.
TABLES: Mapping[str, Callable[[RunRecord], DataFrame]] = {
    "rounds": rounds,
    "reports": reports,
    "links": links,
    "traffic": traffic,
    "events": events,
}


def together(of_runs: Mapping[str, DataFrame]) -> DataFrame:
    """Return one frame with the rows of several runs' frames, and the run's label in the first column, `run`."""
    found = [frame.reset_index() if frame.index.name else frame for frame in of_runs.values()]
    for label, frame in zip(of_runs, found, strict=True):
        frame.insert(0, RUN, label)
    return _pandas().concat(found, ignore_index=True)


def check(form: TableForm) -> None:
    """Check that frames can be written in this form. Raises: PackageMissing: pandas or pyarrow is not installed."""
    _pandas()
    if form == "parquet":
        try:
            import pyarrow  # noqa: F401
        except ImportError as error:
            raise PackageMissing(
                "Parquet files need pyarrow, and pyarrow is missing: pip install 'wan-testbed[parquet]', or write CSV"
            ) from error


def write(frame: DataFrame, file: BinaryIO, form: TableForm) -> None:
    """Write a frame to a file; an index with a name becomes the first column."""
    if form == "csv":
        frame.to_csv(file, index=frame.index.name is not None)
    else:
        (frame.reset_index() if frame.index.name else frame).to_parquet(file, index=False)


def frame_of(columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> DataFrame:
    """Return a frame with these columns first, even without rows, and then the other columns of the rows."""
    found = list(rows)
    others = dict.fromkeys(name for row in found for name in row if name not in columns)
    return _pandas().DataFrame(found, columns=[*columns, *others])


def _pandas() -> Any:
    try:
        import pandas
    except ImportError as error:
        raise PackageMissing(
            "tables are pandas frames, and pandas is missing: pip install 'wan-testbed[tables]'"
        ) from error
    return pandas
