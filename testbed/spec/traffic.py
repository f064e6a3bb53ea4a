"""The fields of a topology file that change a link's rate over time: traces and background traffic."""

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

#: The allowed factors on rates; a factor beyond them is taken for a typing error.
MIN_SCALE, MAX_SCALE = 1e-3, 1e3

#: Reads a trace file, given its end and its step (see `read_trace`).
ReadTrace = Callable[[Path, End, float | None], TraceFile]


class TraceRef(Strict):
    """A trace that changes a link over time, and how it is replayed."""

    file: str
    """The trace's file; its path is relative to the topology's folder."""
    loop: bool | None = None
    """A short form of `end`: true for loop, false for hold."""
    end: End | None = None
    """After the last row, loop (the default) begins again, hold keeps that row, and stop takes the link down."""
    offset: Duration = 0.0
    """The time in the trace at which the replay begins, such as `30s`."""
    step: Step | None = None
    """The length of a row, such as `100ms`, for packet-delivery and iperf3 files."""
    scale: float = Field(default=1.0, ge=MIN_SCALE, le=MAX_SCALE)
    """A factor on the trace's rates, in addition to the experiment's `scale`."""

    @model_validator(mode="after")
    def _one_end(self) -> Self:
        if self.loop is not None and self.end is not None:
            rule = "the trace has both `loop` and `end`"
            raise ValueError(f"{rule} | `end: loop`, `end: hold` or `end: stop`, without `loop`")
        return self

    def read(self, folder: Path, read: ReadTrace = read_trace) -> Trace:
        """Return the trace to replay, whose path is relative to `folder`. TraceError names the file and its fault."""
        end: End = self.end or ("hold" if self.loop is False else "loop")
        trace = read(folder / self.file, end, self.step).trace
        with naming_file(folder / self.file):
            return trace.scaled(self.scale).begun(self.offset)


#: A mean time between two changes of traffic. A queue evens out shorter changes.
MeanTime = Annotated[Duration, at_least(0.05)]


class OnOffSection(Strict):
    """A source that is busy and idle in turn, for exponentially distributed times."""

    rate: TrafficLoad
    """The rate while the source is busy: `20mbit`, or a share of the link's rate, `30%`."""
    busy: MeanTime
    """The mean busy time, such as `5s`."""
    idle: MeanTime
    """The mean idle time, such as `10s`."""


class PoissonSection(Strict):
    """Flows starting as a Poisson process, with exponentially distributed sizes; their mean load is `size`/`every`."""

    rate: TrafficLoad
    """The rate of each flow: `5mbit`, or a share of the link's rate, `10%`."""
    size: Size
    """The mean size of a flow, such as `2MB`."""
    every: MeanTime
    """The mean time between the starts of two flows, such as `1s`."""


class TrafficEntry(Strict):
    """Background traffic that takes a part of links' rates; either `on_off`, `poisson` or `trace`."""

    link: LinkName | None = None
    """The directed link, `paris->tokyo`; by default every link, each with traffic drawn independently."""
    on_off: OnOffSection | None = None
    """Traffic of a source that is busy and idle in turn."""
    poisson: PoissonSection | None = None
    """Flows that start at random times."""
    trace: TraceRef | None = None
    """Recorded traffic: a trace of the rates that the traffic takes."""

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        if len(kinds := self._kinds()) != 1:
            raise ValueError(f"the traffic is {' and '.join(kinds) or 'of no kind'} | one of on_off, poisson, trace")
        return self

    def _kinds(self) -> list[str]:
        return [name for name in ("on_off", "poisson", "trace") if getattr(self, name) is not None]

    @property
    def kind(self) -> str:
        """The kind of the traffic: `on_off`, `poisson` or `trace`."""
        return self._kinds()[0]

    def on(self, capacity_bps: float, recorded: Trace | None) -> Traffic:
        """Return the traffic on a link of `capacity_bps` bit/s; `recorded` is the trace in the file `trace`.

        TraceError: too many flows would be under way at once, or the trace has no rates.
        """
        if self.on_off is not None:
            return OnOff(self.on_off.rate.on(capacity_bps), self.on_off.busy, self.on_off.idle)
        if self.poisson is not None:
            return PoissonFlows(self.poisson.rate.on(capacity_bps), self.poisson.size, self.poisson.every)
        assert recorded is not None
        return Volume(recorded)
