"""What a run measured on a link, as a trace that can be replayed."""

from __future__ import annotations

import math
from pathlib import Path

from testbed.link import NoSuchLink, find_link
from testbed.report.errors import NotARun
from testbed.report.record import RunRecord
from testbed.report.series import steady_rate
from testbed.trace.resample import LEAST_BPS
from testbed.trace.trace import Row, Trace, TraceError, lasting

#: Of a sample's time the queue was backlogged in steady stretches at least so much. What passed in them tells the
#: link's rate within 0.3 % in each sample of four runs of experiments/smoke.yaml, three of them beside `stress-ng
#: --cpu 2`. All that arrived, over all backlogged seconds, was 45 % above it at a tenth of the time, and 21 % at nine
#: tenths.
BACKLOGGED = 0.05


def measured_in(run: Path, link: str) -> tuple[Trace, str]:
    """`measured_trace` of the run in a directory, and where it is from in words. TraceError when there is no run."""
    try:
        record = RunRecord.read(run)
    except NotARun as error:
        raise TraceError(str(error)) from None
    link = _link_in(record, link)
    scale = record.manifest.get("scale", 1)
    return measured_trace(record, link), f"throughput of {link} while backlogged in run {record.id}, scale {scale}"


def measured_trace(record: RunRecord, link: str) -> Trace:
    """A link's throughput, from the start of training on, wherever its queue was backlogged for long enough to tell.

    Elsewhere the rate before holds, at the beginning the first one: less was asked of the link than it could carry.
    Raises TraceError when the run knows no such link, or it was never backlogged.
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
            f"{record.path}: {link} was hardly ever backlogged; its rate is not known", rule="no-rate", link=link
        )
    first = [Row(0.0, rows[0].rate_bps)] if rows[0].time_s > 0 else []
    return Trace(lasting([*first, *rows], float(rates.edges[-1])))


def _link_in(record: RunRecord, written: str) -> str:
    known = sorted({name for sample in record.samples for name in sample.bytes})
    try:
        return find_link(written, known)
    except NoSuchLink:
        raise TraceError(
            f"{record.path}: measured no link {written!r}; name one of {', '.join(known) or '(none)'}",
            rule="unknown-link",
            link=written,
        ) from None
