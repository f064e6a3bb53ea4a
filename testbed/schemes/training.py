"""What the algorithm of a scheme that reduces in rounds is built around."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from testbed.sync.strategies import Reducer


@dataclass(frozen=True, slots=True)
class Training:
    """One member's model, and the session that reduces.

    parameters   the tensors that the members are to agree on, each with its `grad`
    weight       what this member counts in a mean
    assignment   what the scheme tells this member alone
    steps        how many local steps the plan in force gives it to the next round; None where it gives none
    """

    reducer: Reducer
    parameters: Sequence[torch.Tensor]
    weight: float
    assignment: Mapping[str, Any]
    steps: Callable[[], int | None]
