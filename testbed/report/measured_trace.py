"""The rate that a run measured on a link, as a trace that can be replayed."""

from __future__ import annotations

import math
from pathlib import Path

from testbed.link import NoSuchLink, find_link
from testbed.report.record import RunRecord
from testbed.report.run_files import NotARun
from testbed.report.series import steady_rate
from testbed.trace.resample import LEAST_BPS
from testbed.trace.trace import Row, Trace, TraceError, lasting

#: The least share of a sample's time for which the queue must be backlogged in steady stretches. What passed in them
#: shows the link's rate within 0.3 %, in each sample of four runs of experiments/smoke.yaml, three of them beside
#: `stress-ng --cpu 2`. All arrived bytes over all backlogged seconds were 45 % above the rate where the queue was
#: backlogged for a tenth of the time, and 21 % where for nine tenths.
BACKLOGGED = 0.05


def measured_in(run: Path, link: str) -> tuple[Trace, str]:
    """Return the `measured_trace` of a run's directory, and a comment on its origin.

    Raises:
        TraceError: The directory is not a run's, the run has no such link, or the link was never backlogged.
    """
    try:
        record = RunRecord.read(run)
    except NotARun as error:
        raise TraceError(str(error)) from None
    link = _link_in(record, link)
    scale = record.manifest.get("scale", 1)
    return measured_trace(record, link), f"throughput of {link} while backlogged in run {record.id}, scale {scale}"


def measured_trace(record: RunRecord, link: str) -> Trace:
    """Return a link's throughput since training began, at the times at which its queue was backlogged.

    Between them the last rate holds, and before them the first: the link was asked for less than it could carry.

    Raises:
        TraceError: The run has no such link, or the link was never backlogged for long enough.
    """
    link = _link_in(record, link)
    shares, rates = steady_rate(record.samples, link)
    rows = [
        Row(max(float(start), 0.0), max(float(rate), LEAST_BPS))
        for start, stop, rate, share in zip(rates.edges, rates.edges[1:], rates.values, shares.values, strict=False)
        if stop > 0 and share >= BACKLOGGED and not math.isnan(rate)
    ]
    if not rows:
        raise TraceError(
            f"{record.path}: {link} was hardly ever backlogged, so its rate is unknown", rule="no-rate", link=link
        )
    first = [Row(0.0, rows[0].rate_bps)] if rows[0].time_s > 0 else []
    return Trace(lasting([*first, *rows], float(rates.edges[-1])))


def _link_in(record: RunRecord, written: str) -> str:
    known = sorted({name for sample in record.samples for name in sample.bytes})
    try:
        return find_link(written, known)
    except NoSuchLink:
        raise TraceError(
            f"{record.path}: the run has no link {written!r}; name one of {', '.join(known) or '(none)'}",
            rule="unknown-link",
            link=written,
        ) from None
