"""A member of a timed all-reduce, as a program: `python -m benchmarks.support.reducers TASK` with a JSON task.

It prints one JSON object: when each repeat began and ended (monotonic time, which all processes of a host share), and
how much memory the process took at most beyond its memory after importing PyTorch.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from typing import Literal

import torch

Library = Literal["ours", "gloo"]

#: Repeats that are not timed: the first opens the connections' windows and allocates buffers.
WARM_UPS = 1


@dataclass(frozen=True, slots=True)
class Task:
    """The work of one member."""

    library: Library
    member: str
    rank: int
    members: int
    #: Ours: the rendezvous. Gloo: where member 0 listens, host:port.
    address: str
    listen: str
    interface: str
    elements: int
    repeats: int
    timeout_s: float

    def dumps(self) -> str:
        """Return the task as JSON."""
        return json.dumps(asdict(self))


@dataclass(frozen=True, slots=True)
class Outcome:
    """A member's repeats, (begin, end) in monotonic seconds, and its bytes beyond PyTorch's own."""

    spans: tuple[tuple[float, float], ...]
    memory_bytes: int

    @classmethod
    def loads(cls, text: str) -> Outcome:
        """Return the outcome in a program's output."""
        value = json.loads(text)
        return cls(tuple((begin, end) for begin, end in value["spans"]), value["memory_bytes"])


def main() -> None:
    """Take part in all repeats, and print the outcome."""
    torch.set_num_threads(1)
    task = Task(**json.loads(sys.argv[1]))
    before = _memory("VmRSS")
    with _library(task) as (reduce, meet):
        tensor = torch.full((task.elements,), float(task.rank))
        spans = []
        for _ in range(WARM_UPS + task.repeats):
            meet()
            tensor.fill_(float(task.rank))
            began = time.monotonic()
            reduce(tensor)
            spans.append((began, time.monotonic()))
            _check(tensor, task)
    print(json.dumps(asdict(Outcome(tuple(spans[WARM_UPS:]), _memory("VmHWM") - before))))


def _check(tensor: torch.Tensor, task: Task) -> None:
    mean = (task.members - 1) / 2
    expected = mean if task.library == "ours" else mean * task.members
    if not torch.all(tensor == expected):
        raise RuntimeError(f"{task.member}: the result is wrong")


@contextmanager
def _library(task: Task) -> Iterator[tuple[Callable[[torch.Tensor], object], Callable[[], object]]]:
    """Yield a function that all-reduces a tensor, and one that waits for all members.

    Ours reduces to the mean, gloo to the sum, which is less work.
    """
    if task.library == "ours":
        from testbed import sync

        with sync.join(task.address, task.member, task.listen) as session:
            yield session.allreduce, lambda: session.allreduce(torch.ones(1))
        return
    import os

    import torch.distributed as dist

    host, _, port = task.address.rpartition(":")
    os.environ["GLOO_SOCKET_IFNAME"] = task.interface
    dist.init_process_group(
        "gloo",
        init_method=f"tcp://{host}:{port}",
        rank=task.rank,
        world_size=task.members,
        timeout=timedelta(seconds=task.timeout_s),
    )
    try:
        yield dist.all_reduce, dist.barrier
    finally:
        dist.destroy_process_group()


def _memory(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"the kernel does not say {field}")


if __name__ == "__main__":
    main()
