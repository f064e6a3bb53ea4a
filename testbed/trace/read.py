"""Any trace file, in the format that its name tells or, failing that, its content.

`.csv` is CSV, `.json` iperf3, `.up`, `.down` and `.mahimahi` are packet-delivery files. A file of another name is
iperf3's if it begins with a brace; a packet-delivery file if its first line without a comment is a whole number; else
CSV. The suffix of a compressed file (`.gz`, `.bz2`, `.xz`) does not count.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from testbed.trace.csv import parse_csv
from testbed.trace.forms import iperf3
from testbed.trace.mahimahi import STEP_S, parse_mahimahi
from testbed.trace.resample import Resampled
from testbed.trace.text import read_text, unpacked_name
from testbed.trace.trace import End, Trace, TraceError, naming_file

Format = Literal["csv", "mahimahi", "iperf3"]

SUFFIXES: dict[str, Format] = {
    ".csv": "csv",
    ".json": "iperf3",
    ".up": "mahimahi",
    ".down": "mahimahi",
    ".mahimahi": "mahimahi",
}

#: Suffix → what a file of another kind is, and what to do.
OTHERS = {
    **dict.fromkeys((".yaml", ".yml"), "YAML, not a trace; give a CSV, a packet-delivery file or iperf3's JSON"),
    **dict.fromkeys((".gml", ".graphml"), "a graph, not a trace; `testbed topology import` makes a topology of it"),
}


@dataclass(frozen=True, slots=True)
class TraceFile:
    """A trace, with the path and the format of the file that it was read from."""

    path: Path
    format: Format
    trace: Trace
    #: The step and the error of a format without rows of its own; None for CSV.
    resampled: Resampled | None = None


def read_trace(path: Path, end: End = "loop", step_s: float | None = None) -> TraceFile:
    """Read a trace file. Return the trace with the file's path and format.

    Args:
        path: The file.
        end: What happens when the replay reaches the trace's end.
        step_s: The length of a row in seconds, for formats that are resampled; None for the default.

    Raises:
        TraceError: The file is no trace that can be replayed; names the file and the line.
    """
    with naming_file(path):
        if other := OTHERS.get(unpacked_name(path).suffix.lower()):
            raise TraceError(f"the file is {other}", rule="not-a-trace")
        text = read_text(path)
        format_ = format_of(path, text)
        if format_ == "csv":
            if step_s is not None:
                text = "a CSV is replayed row by row; leave the step out, which packet-delivery and iperf3 files have"
                raise TraceError(text, rule="no-step", field="step")
            return TraceFile(path, format_, parse_csv(text.splitlines(), end))
        if format_ == "iperf3":
            made = iperf3.resampled(iperf3.parse_iperf3(text), step_s)
        else:
            made = parse_mahimahi(text.splitlines()).resampled(STEP_S if step_s is None else step_s)
        return TraceFile(path, format_, replace(made.trace, end=end), made)


def format_of(path: Path, text: str) -> Format:
    """Return the format that the suffix tells, or failing that the first line that is no comment."""
    if known := SUFFIXES.get(unpacked_name(path).suffix.lower()):
        return known
    lines = (line.strip() for line in text.splitlines())
    first = next((line for line in lines if line and not line.startswith("#")), "")
    if first.startswith("{"):
        return "iperf3"
    return "mahimahi" if first.isdecimal() else "csv"
