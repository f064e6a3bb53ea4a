"""A worker's training and its declared compute. A run sends the workload; the sync library only passes it on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

#: A step is late if it exceeds its declared time by this fraction of it.
STEP_OVERRUN = 0.10


@dataclass(frozen=True, slots=True)
class Workload:
    """A model, the shard of its data that this worker learns from, an optimizer, and the declared compute."""

    model: str
    batch: int
    optimizer: str
    learning_rate: float
    seed: int
    shard: int
    shards: int
    #: How the data is cut into shards, and the parameter of its Dirichlet draws.
    partition: str = "iid"
    alpha: float = 1.0
    #: The site of each shard's worker.
    sites: tuple[str, ...] = ()
    #: The data to learn from, where the model has a choice.
    dataset: str = ""
    #: The rank of the updates of the model's matrices; 0: the matrices are updated whole.
    rank: int = 0
    #: The size of a synthetic model, and the number of its tensors.
    parameters: int = 0
    tensors: int = 1
    #: The declared time of a step; 0 where none is declared.
    step_seconds: float = 0.0
    device: str = "auto"
    evaluate_every: int = 10
    #: A step takes this many times as long with this probability, drawn for each step.
    slow_factor: float = 1.0
    slow_probability: float = 0.0
    #: (seconds since training began, speed), repeated: a step's time is divided by the speed.
    speeds: tuple[tuple[float, float], ...] = ()

    @property
    def samples_per_s(self) -> float:
        """The declared samples per second; 0 where no step time is declared."""
        return self.batch / self.step_seconds if self.step_seconds else 0.0

    def to_json(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {each.name: getattr(self, each.name) for each in fields(self)}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Workload:
        """Return the workload that `to_json` wrote. ValueError: the mapping is not a workload."""
        try:
            speeds = tuple((float(at_s), float(speed)) for at_s, speed in value.get("speeds", ()))
            return cls(**{**value, "sites": tuple(value.get("sites", ())), "speeds": speeds})
        except TypeError as error:
            raise ValueError(f"the mapping is not a workload: {error}") from error
