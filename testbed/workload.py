"""What a worker trains, and how fast it pretends to compute: a run tells its workers, the library in between does not
look into it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any


@dataclass(frozen=True, slots=True)
class Workload:
    """A model, the shard of its data that this worker learns from, and an optimizer. Times in seconds.

    `dataset` is what is learned from where the model has a choice, `rank` that of its matrices' updates (0: whole).
    `sites` names the site of each shard's worker. A synthetic model has `parameters`, in so many `tensors`.

    A step takes `slow_factor` times its `step_seconds` with the probability `slow_probability`, drawn anew for each
    step, and the time over a speed that changes: `speeds` are (seconds since training began, speed), over and over.
    """

    model: str
    batch: int
    optimizer: str
    learning_rate: float
    seed: int
    shard: int
    shards: int
    partition: str = "iid"
    alpha: float = 1.0
    sites: tuple[str, ...] = ()
    dataset: str = ""
    rank: int = 0
    parameters: int = 0
    tensors: int = 1
    step_seconds: float = 0.0
    device: str = "auto"
    evaluate_every: int = 10
    slow_factor: float = 1.0
    slow_probability: float = 0.0
    speeds: tuple[tuple[float, float], ...] = ()

    @property
    def samples_per_s(self) -> float:
        """What is declared; 0 where no time is."""
        return self.batch / self.step_seconds if self.step_seconds else 0.0

    def to_json(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {each.name: getattr(self, each.name) for each in fields(self)}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Workload:
        """The workload that a mapping says; ValueError when it says none."""
        try:
            speeds = tuple((float(at_s), float(speed)) for at_s, speed in value.get("speeds", ()))
            return cls(**{**value, "sites": tuple(value.get("sites", ())), "speeds": speeds})
        except TypeError as error:
            raise ValueError(f"not a workload: {error}") from error
