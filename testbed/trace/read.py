"""Any trace file, in the format that its name or, failing that, its content tells.

`.csv` is CSV, `.json` iperf3, `.up`, `.down` and `.mahimahi` are packet-delivery files. Of other names: a file that
begins with a brace is iperf3's; one whose first line that is no comment is a whole number is a packet-delivery file;
all others are CSV. The suffix of a compressed file (`.gz`, `.bz2`, `.xz`) does not count.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from testbed.trace import iperf3
from testbed.trace.csv import parse_csv
from testbed.trace.mahimahi import STEP_S, parse_mahimahi
from testbed.trace.resample import Resampled
from testbed.trace.text import read_text, unpacked_name
from testbed.trace.trace import End, Trace, TraceError

Format = Literal["csv", "mahimahi", "iperf3"]

SUFFIXES: dict[str, Format] = {
    ".csv": "csv",
    ".json": "iperf3",
    ".up": "mahimahi",
    ".down": "mahimahi",
    ".mahimahi": "mahimahi",
}


@dataclass(frozen=True, slots=True)
class TraceFile:
    """A trace and where it is from. `resampled` tells the step and the error of a format without rows of its own."""

    path: Path
    format: Format
    trace: Trace
    resampled: Resampled | None = None


def read_trace(path: Path, end: End = "loop", step_s: float | None = None) -> TraceFile:
    """The trace in a file; `step_s` is for formats that are resampled. TraceError names file, line and remedy."""
    if path.suffix.lower() in (".yaml", ".yml"):
        raise TraceError(
            f"{path}: is a YAML file, and no trace; give a CSV, a packet-delivery file or iperf3's JSON",
            rule="not-a-trace",
            file=path,
        )
    text = read_text(path)
    format_ = format_of(path, text)
    try:
        if format_ == "csv":
            if step_s is not None:
                raise TraceError(
                    "is CSV, replayed row by row; a step is for packet-delivery and iperf3 files, drop it",
                    rule="no-step",
                    field="step",
                )
            return TraceFile(path, format_, parse_csv(text.splitlines(), end))
        made = _resampled(text, format_, step_s)
    except TraceError as error:
        raise error.located(path, file=path) from None
    return TraceFile(path, format_, replace(made.trace, end=end), made)


def _resampled(text: str, format_: Format, step_s: float | None) -> Resampled:
    if format_ == "iperf3":
        return iperf3.resampled(iperf3.parse_iperf3(text), step_s)
    return parse_mahimahi(text.splitlines()).resampled(STEP_S if step_s is None else step_s)


def format_of(path: Path, text: str) -> Format:
    """By suffix, then by the first line that says something."""
    if known := SUFFIXES.get(unpacked_name(path).suffix.lower()):
        return known
    said = (line.strip() for line in text.splitlines())
    first = next((line for line in said if line and not line.startswith("#")), "")
    if first.startswith("{"):
        return "iperf3"
    return "mahimahi" if first.isdecimal() else "csv"
