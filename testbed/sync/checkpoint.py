"""A member's state between two steps, in one file that is safe to load: it holds tensors and plain values alone."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, Protocol

import torch

from testbed.atomic_file import replacing
from testbed.plan import Plan, PlanError
from testbed.sync.errors import CheckpointError

VERSION = 1


class Stateful(Protocol):
    """A module, an optimizer, a strategy: whatever has its state in a dictionary and takes it back."""

    def state_dict(self) -> dict[str, Any]:
        """Tensors and plain values."""

    def load_state_dict(self, state: Mapping[str, Any]) -> Any:
        """Go on from them."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What was saved after round `round`, which went by `plan`.

    A member that restores it and continues with the round that follows, with the same data and under the same plan,
    gets that round's result to the bit, as far as the order of additions is the same (two members, or a plan that is
    reproducible).
    """

    round: int
    plan: Plan
    parts: Mapping[str, Mapping[str, Any]]

    @property
    def epoch(self) -> int:
        """The plan's."""
        return self.plan.epoch

    def restore(self, **parts: Stateful) -> None:
        """Give each part its state back, by the name it was saved under; the model first, then what works on it."""
        if missing := sorted(set(parts) ^ set(self.parts)):
            raise CheckpointError(
                f"the checkpoint holds {sorted(self.parts)}, asked for {sorted(parts)}: {missing}",
                rule="parts",
                given=sorted(parts),
            )
        for name, part in parts.items():
            part.load_state_dict(self.parts[name])


def save(path: Path, round_number: int, plan: Plan, **parts: Stateful) -> None:
    """Write the parts' states: whole or not at all, whenever the power fails.

    The states of a module and an optimizer are their tensors themselves, not copies, and they are written after all
    of the parts were asked: what a strategy still changes when it is asked is in them.
    """
    value = {
        "version": VERSION,
        "round": round_number,
        "plan": plan.dumps(),
        "parts": {name: part.state_dict() for name, part in parts.items()},
    }
    with replacing(path) as file:
        torch.save(value, file)


def load(path: Path) -> Checkpoint:
    """The checkpoint in a file; CheckpointError when it is none, or holds anything that could do something."""
    try:
        value = torch.load(path, map_location="cpu", weights_only=True)
    except (UnpicklingError, RuntimeError, ValueError, EOFError, KeyError) as error:
        raise CheckpointError(f"{path} is no checkpoint: {error}", rule="no-checkpoint", file=path) from error
    if not isinstance(value, dict) or value.get("version") != VERSION:
        raise CheckpointError(f"{path} is no checkpoint of version {VERSION}", rule="no-checkpoint", file=path)
    try:
        plan = Plan.from_json(json.loads(value["plan"]))
        return Checkpoint(int(value["round"]), plan, value["parts"])
    except (KeyError, TypeError, ValueError, PlanError) as error:
        raise CheckpointError(f"{path} is no checkpoint: {error!r}", rule="no-checkpoint", file=path) from error
