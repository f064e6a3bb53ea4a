"""The compute that an experiment declares for its workers: the time of a step, and which workers are slower when."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Self

from pydantic import Field, model_validator

from testbed.spec.errors import Fault, SpecError
from testbed.spec.model import Strict, misfit
from testbed.spec.topology import Topology, Worker
from testbed.spec.units import Duration
from testbed.trace.csv import Speeds, read_speeds
from testbed.trace.trace import TraceError

#: The allowed factors on step times; a factor beyond them is taken for a typing error.
LEAST_FACTOR, MOST_FACTOR = 1e-3, 1e3


class SlowdownSection(Strict):
    """Random slow steps: with a probability, a step of any worker takes several times as long."""

    factor: float = Field(default=6.0, ge=1, le=MOST_FACTOR)
    """The factor on the time of a slow step."""
    probability: float = Field(ge=0, le=1)
    """The probability in [0, 1] that a step is slow."""


class ComputeSection(Strict):
    """Declared compute. Workers compute a step for real, then wait until its declared time is over."""

    step_time: Duration = 0.0
    """The time of a step at speed 1, such as `60ms`; with 0s steps take their real time."""
    slowdown: SlowdownSection | None = None
    """Random slow steps; by default there are no slow steps."""
    stragglers: dict[str, float] = Field(default_factory=dict)
    """Workers that are always slow: worker → the factor on the time of all its steps."""
    speeds: dict[str, str] = Field(default_factory=dict)
    """Workers whose speed changes: worker or site → the file of a trace of speeds, which is repeated."""

    @model_validator(mode="after")
    def _paced(self) -> Self:
        for name in ("slowdown", "stragglers", "speeds"):
            if getattr(self, name) and not self.step_time:
                rule = f"the field is needed, because `{name}` changes the declared time of a step"
                raise misfit("step_time", rule, "a duration, such as 60ms")
        for worker, factor in self.stragglers.items():
            if not LEAST_FACTOR <= factor <= MOST_FACTOR:
                remedy = f"a factor from {LEAST_FACTOR:g} to {MOST_FACTOR:g}"
                raise misfit(f"stragglers.{worker}", f"the factor {factor:g} is out of range", remedy)
        return self

    def step_seconds(self, worker: Worker) -> float:
        """Return the declared time of a worker's step in seconds, without random slow steps and traces of speed."""
        return self.step_time * self.stragglers.get(worker.name, 1.0) / worker.speed

    def check(self, topology: Topology) -> Iterator[Fault]:
        """Yield a fault for each straggler that is no worker, and each speed whose name is no worker or site."""
        workers = {worker.name for worker in topology.workers}
        kinds = {"stragglers": ("worker", workers), "speeds": ("worker or site", workers | set(topology.sites))}
        for field, (kind, known) in kinds.items():
            for name in getattr(self, field):
                if name not in known:
                    rule = f"{topology.file} has no {kind} {name!r}"
                    yield Fault(f"compute.{field}.{name}", rule, f"one of {', '.join(sorted(known)[:12])}")

    def read_speeds(self, topology: Topology, file: Path) -> dict[str, Speeds]:
        """Return worker → the trace of its speed, or else of its site's. SpecError: a trace can't be read.

        The traces' paths are relative to the folder of `file`, the experiment's.
        """
        read: dict[str, Speeds] = {}
        for name, path in self.speeds.items():
            try:
                read[name] = read_speeds(file.parent / path)
            except TraceError as error:
                fault = Fault(f"compute.speeds.{name}", str(error), "a trace of speed as docs/experiment.md describes")
                raise SpecError(file, [fault]) from None
        named = {worker.name: worker.name if worker.name in read else worker.site for worker in topology.workers}
        return {worker: read[name] for worker, name in named.items() if name in read}
