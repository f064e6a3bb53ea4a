"""What a run measured on a link, as a trace that can be replayed."""

from __future__ import annotations

import math
from pathlib import Path

from testbed.report.errors import NotARun
from testbed.report.record import RunRecord
from testbed.report.series import arrived, backlogged
from testbed.trace.resample import LEAST_BPS
from testbed.trace.trace import Row, Trace, TraceError, lasting

#: Of a sample's time the queue was backlogged at least so much. What arrived over the backlogged seconds is then near
#: the link's rate: within 1 % in the median and 6 % in nine of ten samples of a run of experiments/smoke.yaml. Below
#: a third it was too high by up to a half and more, since much passes without a queue.
BACKLOGGED = 0.5


def measured_in(run: Path, link: str) -> tuple[Trace, str]:
    """`measured_trace` of the run in a directory, and where it is from in words. TraceError when there is no run."""
    try:
        record = RunRecord.read(run)
    except NotARun as error:
        raise TraceError(str(error)) from None
    scale = record.manifest.get("scale", 1)
    return measured_trace(record, link), f"throughput of {link} while backlogged in run {record.id}, scale {scale}"


def measured_trace(record: RunRecord, link: str) -> Trace:
    """A link's throughput, from the start of training on, wherever its queue was backlogged: bytes over those seconds.

    Elsewhere the rate before holds, at the beginning the first one: less was asked of the link than it could carry.
    Raises TraceError when the run knows no such link, or it was never backlogged.
    """
    known = sorted({name for sample in record.samples for name in sample.bytes})
    if link not in known:
        raise TraceError(f"{record.path}: measured no link {link!r}; name one of {', '.join(known) or '(none)'}")
    rates, busy = arrived(record.samples, link), backlogged(record.samples, link)
    rows = [
        Row(max(float(start), 0.0), max(float(rate / share), LEAST_BPS))
        for start, stop, rate, share in zip(rates.edges, rates.edges[1:], rates.values, busy.values, strict=False)
        if stop > 0 and share >= BACKLOGGED and not math.isnan(rate)
    ]
    if not rows:
        raise TraceError(
            f"{record.path}: {link} was never backlogged for half a second together; its rate is not known"
        )
    first = [Row(0.0, rows[0].rate_bps)] if rows[0].time_s > 0 else []
    return Trace(lasting([*first, *rows], float(rates.edges[-1])))
