"""A member's program, the product's own, which says on its output what it put into each round and what it got.

It needs nothing beside the worker's image: a container runs the text of this file. What it learns is whole numbers:
member i's gradient has 8^i, times a factor of the step's and the element's, so that a sum of up to seven
contributions of each of four members is exact in float32, and says whose it holds and how often.
"""

from __future__ import annotations

import base64
import json
import os
import zlib
from collections.abc import Callable
from typing import Any

import torch

from testbed.sync.session import Session
from testbed.worker import learner
from testbed.worker.__main__ import main as work
from testbed.workload import Workload

#: What a line of a member's log begins with that is a record; all else was said by the product.
RECORD = "CHAOS "
FACTORS = 7


class WholeNumbers(learner.Synthetic):
    """Learns nothing, from gradients that say whose they are."""

    def __init__(self, work: Workload, device: torch.device) -> None:
        super().__init__(work, device)
        self._unit = 8**work.shard
        self._step = 0

    def compute(self) -> dict[str, float]:
        """The next step's gradient."""
        self._step += 1
        elements = torch.arange(self.gradient.numel(), device=self.gradient.device)
        self.gradient.copy_(((elements + self._step) % FACTORS + 1) * self._unit)
        return {}


def say(**record: Any) -> None:
    """Write a record, whole, whatever happens to this process next."""
    os.write(1, f"{RECORD}{json.dumps(record)}\n".encode())


def packed(tensor: torch.Tensor) -> str:
    """A float32 tensor as text: see history.py for the way back."""
    values = tensor.detach().cpu().contiguous().view(-1)
    return base64.b64encode(zlib.compress(bytes(values.view(torch.uint8).tolist()))).decode()


def recorded(begin: Callable[..., Callable[[], Any]]) -> Callable[..., Callable[[], Any]]:
    """The method of a session that begins a round, and records it."""

    def begin_and_say(self: Session, tensor: torch.Tensor, weight: float, *more: Any, **options: Any) -> Any:
        say(gives=self.name, round=self.rounds + 1, weight=weight, values=packed(tensor))
        end = begin(self, tensor, weight, *more, **options)

        def end_and_say() -> Any:
            result = end()
            slices = [[part.start, part.stop, list(part.members), part.weight] for part in result.slices]
            say(gets=self.name, round=result.round, whole=result.whole, slices=slices, values=packed(result.tensor))
            return result

        return end_and_say

    return begin_and_say


def main() -> int:
    """Be a worker; its exit code."""
    learner.Synthetic = WholeNumbers  # type: ignore[misc]
    Session._begin = recorded(Session._begin)  # type: ignore[method-assign]
    return work()


if __name__ == "__main__":
    raise SystemExit(main())
