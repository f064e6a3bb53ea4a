"""The reference to a trace in a topology file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Self

from pydantic import Field, model_validator

from testbed.spec.model import Strict
from testbed.spec.units import Duration, Step
from testbed.trace.read import TraceFile, read_trace
from testbed.trace.trace import End, Trace, naming_file

#: The factors on rates that are allowed; others are a slip of the pen.
MIN_SCALE, MAX_SCALE = 1e-3, 1e3

#: Reads a trace file, given its end and its step (see `read_trace`).
ReadTrace = Callable[[Path, End, float | None], TraceFile]


class TraceRef(Strict):
    """A trace that moves a link, and how it is replayed."""

    file: str
    """The trace's file; its path begins in the topology's folder."""
    loop: bool | None = None
    """Short for `end`: true for loop, false for hold."""
    end: End | None = None
    """What follows the last row: loop begins again (by default), hold keeps the row, stop takes the link down."""
    offset: Duration = 0.0
    """The time in the trace at which the replay begins."""
    step: Step | None = None
    """The length of a row, for packet-delivery files and iperf3's."""
    scale: float = Field(default=1.0, ge=MIN_SCALE, le=MAX_SCALE)
    """A factor on the trace's rates, beside the experiment's scale."""

    @model_validator(mode="after")
    def _one_end(self) -> Self:
        if self.loop is not None and self.end is not None:
            rule = "the trace has both `loop` and `end`"
            raise ValueError(f"{rule} | `end: loop`, `end: hold` or `end: stop`, without `loop`")
        return self

    def read(self, folder: Path, read: ReadTrace = read_trace) -> Trace:
        """Return the trace as it is replayed. TraceError names the file and what is wrong in it.

        Args:
            folder: The topology's folder.
            read: Reads the file.
        """
        end: End = self.end or ("hold" if self.loop is False else "loop")
        trace = read(folder / self.file, end, self.step).trace
        with naming_file(folder / self.file):
            return trace.scaled(self.scale).begun(self.offset)
