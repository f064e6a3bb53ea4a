"""A member's program: the worker's, which also prints its contribution to each round and the result.

It needs nothing beside the worker's image: a container runs the text of this file. Its gradients are whole numbers:
member i's gradient has 8^i, times a factor of the step and the element. So a sum of up to seven contributions of each
of four members is exact in float32, and shows whose contributions it holds, and how often.
"""

from __future__ import annotations

import base64
import json
import os
import zlib
from collections.abc import Callable, Iterable
from typing import Any

import torch

from testbed.sync.session import Session
from testbed.worker import learner
from testbed.worker.__main__ import main as work
from testbed.workload import Workload

#: The prefix of a record in a member's log; all other lines are the product's.
RECORD = "CHAOS "
FACTORS = 7
#: The most elements of a tensor in a record. Of a longer tensor it has some, evenly spread.
SAMPLED = 1024


class WholeNumbers(learner.Synthetic):
    """A learner that learns nothing: each element of its gradient encodes the member."""

    def __init__(self, work: Workload, device: torch.device) -> None:
        super().__init__(work, device)
        self._unit = 8**work.shard
        self._step = 0

    def compute(self) -> dict[str, float]:
        """Write the next step's gradient."""
        self._step += 1
        elements = torch.arange(self.gradient.numel(), device=self.gradient.device)
        self.gradient.copy_(((elements + self._step) % FACTORS + 1) * self._unit)
        return {}


def print_record(**record: Any) -> None:
    """Write a record whole, whatever happens to this process next."""
    os.write(1, f"{RECORD}{json.dumps(record)}\n".encode())


def stride_of(tensor: torch.Tensor) -> int:
    """Return the distance of the elements that a record has of a tensor; 1 if it has all."""
    return max(1, -(-tensor.numel() // SAMPLED))


def encoded(tensor: torch.Tensor) -> str:
    """Return the recorded elements of a float32 tensor as text; history.py reads it."""
    values = tensor.detach().view(-1)[:: stride_of(tensor)].cpu().contiguous()
    return base64.b64encode(zlib.compress(bytes(values.view(torch.uint8).tolist()))).decode()


def recorded_slices(parts: Iterable[Any], stride: int) -> list[list[Any]]:
    """Return [start, stop, members, weight] of each slice that has recorded elements, counted in these."""
    found = ([-(-part.start // stride), -(-part.stop // stride), list(part.members), part.weight] for part in parts)
    return [its for its in found if its[0] < its[1]]


def recording(begin: Callable[..., Callable[[], Any]]) -> Callable[..., Callable[[], Any]]:
    """Wrap the session's method that begins a round, so that it prints the contribution and the result."""

    def begin_and_say(self: Session, tensor: torch.Tensor, weight: float, *more: Any, **options: Any) -> Any:
        print_record(gives=self.name, round=self.rounds + 1, weight=weight, values=encoded(tensor))
        end = begin(self, tensor, weight, *more, **options)

        def end_and_say() -> Any:
            result = end()
            slices = recorded_slices(result.slices, stride_of(result.tensor))
            print_record(
                gets=self.name, round=result.round, whole=result.whole, slices=slices, values=encoded(result.tensor)
            )
            return result

        return end_and_say

    return begin_and_say


def main() -> int:
    """Run a worker, and return its exit code."""
    learner.Synthetic = WholeNumbers  # type: ignore[misc]
    Session._begin = recording(Session._begin)  # type: ignore[method-assign]
    return work()


if __name__ == "__main__":
    raise SystemExit(main())
