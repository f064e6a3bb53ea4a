"""What an experiment declares of its workers' compute: how long steps take, and whose take longer when."""

from __future__ import annotations

from pathlib import Path
from typing import Self

from pydantic import Field, model_validator

from testbed.spec.errors import Fault, SpecError
from testbed.spec.load import Strict, misfit
from testbed.spec.topology import Topology, Worker
from testbed.spec.units import Duration
from testbed.trace.speed import Speeds, read_speeds
from testbed.trace.trace import TraceError

#: A factor on step times outside this is a slip of the pen.
LEAST_FACTOR, MOST_FACTOR = 1e-3, 1e3


class SlowdownSection(Strict):
    """Each step of each worker takes `factor` times as long with this probability."""

    factor: float = Field(default=6.0, ge=1, le=MOST_FACTOR)
    probability: float = Field(ge=0, le=1)


class ComputeSection(Strict):
    """Declared compute: a step takes `step_time` at speed 1; workers compute for real, then wait until then.

    `stragglers` maps workers to a factor on all of their steps, `speeds` workers or sites to the file of a trace of
    their speed, which is repeated.
    """

    step_time: Duration = 0.0
    slowdown: SlowdownSection | None = None
    stragglers: dict[str, float] = Field(default_factory=dict)
    speeds: dict[str, str] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _paced(self) -> Self:
        for name in ("slowdown", "stragglers", "speeds"):
            if getattr(self, name) and not self.step_time:
                raise misfit("step_time", f"without it `{name}` has nothing to change", "a duration, such as 60ms")
        for worker, factor in self.stragglers.items():
            if not LEAST_FACTOR <= factor <= MOST_FACTOR:
                remedy = f"a factor from {LEAST_FACTOR:g} to {MOST_FACTOR:g}"
                raise misfit(f"stragglers.{worker}", f"is {factor:g}", remedy)
        return self

    def step_seconds(self, worker: Worker) -> float:
        """The declared time of a worker's step, before what changes from step to step."""
        return self.step_time * self.stragglers.get(worker.name, 1.0) / worker.speed

    def check(self, topology: Topology) -> list[Fault]:
        """What is wrong with the names: stragglers are workers, speeds those of workers or of sites."""
        workers = {worker.name for worker in topology.workers}
        everyone = {"stragglers": workers, "speeds": workers | set(topology.sites)}
        return [
            Fault(
                f"compute.{kind}.{name}",
                "is no worker" + " or site" * (kind == "speeds"),
                "one of " + ", ".join(sorted(known)[:12]),
            )
            for kind, known in everyone.items()
            for name in getattr(self, kind)
            if name not in known
        ]

    def read_speeds(self, topology: Topology, file: Path) -> dict[str, Speeds]:
        """The trace of each worker that has one, its own or else its site's; SpecError when one can't be read."""
        read: dict[str, Speeds] = {}
        for name, path in self.speeds.items():
            try:
                read[name] = read_speeds(file.parent / path)
            except TraceError as error:
                fault = Fault(f"compute.speeds.{name}", str(error), "a file as docs/experiment.md says")
                raise SpecError(file, [fault]) from None
        named = {worker.name: worker.name if worker.name in read else worker.site for worker in topology.workers}
        return {worker: read[name] for worker, name in named.items() if name in read}
