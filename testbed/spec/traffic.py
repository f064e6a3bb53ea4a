"""The rates of a link that a topology file does not fix: a trace that moves them, and background traffic."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Self

from pydantic import Field, model_validator

from testbed.spec.event import LinkName
from testbed.spec.model import Strict
from testbed.spec.units import Duration, Size, Step, TrafficLoad, at_least
from testbed.trace.read import TraceFile, read_trace
from testbed.trace.trace import End, Trace, naming_file
from testbed.trace.traffic import OnOff, PoissonFlows, Traffic, Volume

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
        """Return the trace as it is replayed, from the topology's folder. TraceError names the file and its fault."""
        end: End = self.end or ("hold" if self.loop is False else "loop")
        trace = read(folder / self.file, end, self.step).trace
        with naming_file(folder / self.file):
            return trace.scaled(self.scale).begun(self.offset)


#: A mean time between two changes. A queue evens out what is shorter.
MeanTime = Annotated[Duration, at_least(0.05)]


class OnOffSection(Strict):
    """A source that is busy and idle in turn, for exponential times."""

    rate: TrafficLoad
    """The rate while it is busy: `20mbit`, or a share of the link's rate, `30%`."""
    busy: MeanTime
    """The mean of the busy times."""
    idle: MeanTime
    """The mean of the idle times."""


class PoissonSection(Strict):
    """Flows that begin as a Poisson process, with exponential sizes. In the mean they take `size` / `every`."""

    rate: TrafficLoad
    """The rate of each flow: `5mbit`, or a share of the link's rate, `10%`."""
    size: Size
    """The mean of the flows' sizes."""
    every: MeanTime
    """The mean time between the begins of two flows."""


class TrafficEntry(Strict):
    """Background traffic on links: what it takes of a link's rate. It is of one kind."""

    link: LinkName | None = None
    """The directed link, `paris->tokyo`; by default each link has such traffic, drawn for itself."""
    on_off: OnOffSection | None = None
    """Traffic that is there and not there in turn."""
    poisson: PoissonSection | None = None
    """Flows that come and end."""
    trace: TraceRef | None = None
    """Recorded traffic: a trace of its rates."""

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        if len(kinds := self._kinds()) != 1:
            raise ValueError(f"the traffic is {' and '.join(kinds) or 'of no kind'} | one of on_off, poisson, trace")
        return self

    def _kinds(self) -> list[str]:
        return [name for name in ("on_off", "poisson", "trace") if getattr(self, name) is not None]

    @property
    def kind(self) -> str:
        """The field that says what the traffic is."""
        return self._kinds()[0]

    def on(self, capacity_bps: float, recorded: Trace | None) -> Traffic:
        """Return the traffic on a link with this capacity; `recorded` is the trace that `trace` names.

        TraceError where too many flows would be under way at once, or the trace has no rates.
        """
        if self.on_off is not None:
            return OnOff(self.on_off.rate.on(capacity_bps), self.on_off.busy, self.on_off.idle)
        if self.poisson is not None:
            return PoissonFlows(self.poisson.rate.on(capacity_bps), self.poisson.size, self.poisson.every)
        assert recorded is not None
        return Volume(recorded)
