"""How a run ended that did not come to its end, as far as what it left says that."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

from testbed.report.record import RunRecord
from testbed.run.directory import RESERVE_BYTES, is_going_on


def ended_early(record: RunRecord) -> tuple[str, ...]:
    """Why it ended, where it could say so; else how far it had come when it was cut off."""
    return tuple(record.summary.get("reasons", ())) or tuple(_signs(record))


def _signs(record: RunRecord) -> Iterator[str]:
    manifest = record.manifest
    if is_going_on(manifest):
        yield f"its process, {manifest['process']['pid']}, is still at work; this is what it recorded so far"
        return
    yield f"it was cut off {_stage(record)}; this is what it had recorded by then"
    if shutil.disk_usage(record.path).free < RESERVE_BYTES:
        yield "the disk that its directory is on is full now"


def _stage(record: RunRecord) -> str:
    if "backend" not in record.manifest:
        return "before its network was built"
    if "training_started_s" not in record.manifest:
        return "before training began"
    if "ended_s" in record.manifest:
        return "after training had ended, before its summary was written"
    asked = (record.spec.get("train") or {}).get("rounds", "an unknown number")
    return f"{record.end_s:.0f} s into training, with {len(record.rounds)} of {asked} rounds complete"
