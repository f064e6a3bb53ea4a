"""Ranks of process groups, as processes that stay for many tests: each runs the functions that it is sent."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection
from typing import Any

from tests.ports import free_port
from tests.program import FORKS, preload
from tests.waiting import PATIENCE_S

preload("testbed.sync.c10d", "torch._dynamo", "torch.distributed.fsdp", "torch.distributed.optim")

#: The longest wait of a rank for the others in seconds: a busy machine may take half a minute to start a controller.
TIMEOUT_S = PATIENCE_S


class Ranks:
    """The `count` ranks of a group `wan`. A context manager.

    The group uses the controller at the address `controller`, whose members are m0, m1, …; without an address, rank 0
    starts one.
    """

    def __init__(self, count: int, controller: str = "") -> None:
        port = free_port()
        self._stuck = ""
        self._pipes: list[Connection[Any, Any]] = []
        self.processes = []
        for rank in range(count):
            here, there = FORKS.Pipe()
            self._pipes.append(here)
            process = FORKS.Process(target=_serve, args=(rank, count, port, controller, there), daemon=True)
            process.start()
            there.close()
            self.processes.append(process)

    def __enter__(self) -> Ranks:
        return self

    def __exit__(self, *_: object) -> None:
        for pipe in self._pipes:
            pipe.close()
        for process in self.processes:
            process.join(0 if self._stuck else TIMEOUT_S)
            process.kill()

    def begin(self, work: Callable[..., Any], *arguments: object) -> None:
        """Let each rank call `work`, a function of a test's module, with its rank and the arguments."""
        assert not self._stuck, self._stuck
        for pipe in self._pipes:
            pipe.send((work, arguments))

    def end(self, *ranks: int) -> list[Any]:
        """Return the results of some ranks, after all of them have ended.

        Raises AssertionError with the traceback of a rank that raised. After a rank that does not end, all later calls
        fail.
        """
        assert not self._stuck, self._stuck
        outcomes: list[tuple[bool, Any]] = []
        for rank in ranks:
            if not self._pipes[rank].poll(2 * TIMEOUT_S):
                self._stuck = f"rank {rank} does not end; others: {outcomes}"
                raise AssertionError(self._stuck)
            outcomes.append(self._pipes[rank].recv())
        failures = [f"rank {rank}: {value}" for rank, (failed, value) in zip(ranks, outcomes, strict=True) if failed]
        assert not failures, failures[0]
        return [value for _, value in outcomes]

    def do(self, work: Callable[..., Any], *arguments: object) -> list[Any]:
        """Let each rank call `work`, and return the results of all."""
        self.begin(work, *arguments)
        return self.end(*range(len(self._pipes)))


def _serve(rank: int, count: int, port: int, controller: str, pipe: Connection[Any, Any]) -> None:
    import torch
    import torch.distributed as dist

    from testbed import torch_backend

    torch.set_num_threads(1)
    torch_backend.register()
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "RANK": rank, "WORLD_SIZE": count}
    os.environ.update({"GLOO_SOCKET_IFNAME": "lo", **{name: str(value) for name, value in place.items()}})
    if controller:
        os.environ.update({"TESTBED_CONTROLLER": controller, "TESTBED_MEMBER": f"m{rank}"})
    dist.init_process_group("wan", timeout=timedelta(seconds=TIMEOUT_S))
    while True:
        try:
            work, arguments = pipe.recv()
        except EOFError:
            break
        try:
            outcome = False, work(rank, *arguments)
        except Exception:
            outcome = True, traceback.format_exc()
        pipe.send(outcome)
    dist.destroy_process_group()
