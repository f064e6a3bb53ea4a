"""A member of another system, started again whenever it ends: `python -m benchmarks.support.goodput.members SYSTEM`.

    launch --> keeper, with PyTorch loaded --fork--> member: a process group of its own, trains until it is killed
                                           <-dies--'

A fork takes almost nothing, as for the testbed's own workers in this benchmark. Members print a JSON line as they
begin, and after each round that counts. torchrun's agent keeps its workers by itself: a death has all of them begin
again at the last checkpoint.
"""

from __future__ import annotations

import importlib
import json
import multiprocessing
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # optimizers and process groups load it as they are made: here once for all forks
import torch.distributed as dist
from torch.distributed import TCPStore  # type: ignore[attr-defined]  # public, but not said to be
from torch.distributed.launcher.api import LaunchConfig, elastic_launch
from torch.nn.parallel import DistributedDataParallel

from benchmarks.support.goodput import members
from benchmarks.support.goodput.settings import (
    BATCH,
    CHECKPOINT,
    CHECKPOINT_EVERY,
    EVALUATE_ROUNDS,
    EVALUATE_STEPS,
    EVERY,
    LEARNING_RATE,
    MEMBERS,
    MOMENTUM,
    OUTER,
    QUORUM,
    SEED,
    TOGETHER,
    workload,
)
from benchmarks.support.systems.cells import own_address
from testbed.worker.learner import Supervised
from testbed.worker.pace import Pace

#: The port of hivemind's first addresses, and of torchft's lighthouse, at the first member.
PORT = 29510
#: The port of torchrun's rendezvous, at the first member.
RENDEZVOUS_PORT = 29400
#: hivemind's default of 15 s is for peers that come and go slowly; here a round has 8 s of steps.
MATCHMAKING_S = 3.0
AGAIN_S = 0.1
#: torchft's default.
TIMEOUT = timedelta(seconds=60)
#: As in torchft's own description of its use.
JOIN_TIMEOUT_MS = 10_000
ENDLESS = 1_000_000


def tell(**said: Any) -> None:
    """Print a line for the benchmark, whole, whatever happens to this process next."""
    line = {"member": os.environ["TESTBED_WORKER"], "at": time.time(), **said}
    os.write(1, f"{json.dumps(line)}\n".encode())


class Steps:
    """The steps of a member: those of the testbed's own workers, of the same data, at the declared time."""

    def __init__(self, rank: int) -> None:
        work = workload(int(os.environ[SEED]), rank)
        torch.set_num_threads(1)
        self.learner = Supervised(work, Path(), torch.device("cpu"))
        self.model = self.learner._model
        self.optimizer = torch.optim.Adam(self.model.parameters(), LEARNING_RATE)
        self._pace = Pace(work.step_seconds)
        self._late_s = self._evaluated_s = 0.0

    def take(self, optimizer: Any, reduces: bool = False) -> None:
        """Take a step by the next gradient, at the declared time.

        Args:
            optimizer: Steps by the gradient. What it does besides comes on top of the declared time.
            reduces: The gradient is reduced while it is computed, so that the declared time passes before.
        """
        if reduces:
            self._reach()
        for parameter in self.model.parameters():
            parameter.grad = None
        self.learner.compute()
        if not reduces:
            self._reach()
        optimizer.step()
        self._pace.begin()  # so an evaluation takes place in time that would be slept

    def _reach(self) -> None:
        """Wait until the step's declared end. An evaluation since its begin makes no step late."""
        late_s, self._evaluated_s = self._pace.reach().late_s - self._evaluated_s, 0.0
        self._late_s = max(self._late_s, late_s)

    def tell_round(self, number: int, samples: int, evaluates: bool, member: str | None = None) -> None:
        """Tell of a round that counts; `evaluates` adds the loss over the test set."""
        began_s = time.monotonic()
        loss = {"test_loss": self.learner.evaluate()["test_loss"]} if evaluates else {}
        self._evaluated_s = time.monotonic() - began_s
        late_s, self._late_s = self._late_s, 0.0
        tell(round=number, samples=samples, late_s=late_s, **loss, **({} if member is None else {"member": member}))


def ddp() -> None:
    """Train as a worker of torchrun: gradients over gloo in each step, from the last checkpoint on."""
    _is_member()
    dist.init_process_group("gloo")
    rank, file = dist.get_rank(), Path(os.environ[CHECKPOINT])
    steps, done = Steps(rank), 0
    plain = steps.model
    if file.exists():
        kept = torch.load(file)
        plain.load_state_dict(kept["model"])
        steps.optimizer.load_state_dict(kept["optimizer"])
        done = kept["done"]
    steps.learner._model = DistributedDataParallel(plain)
    tell(began=True)
    if rank == 0:
        tell(resumed=done, member=TOGETHER)
    while True:
        steps.take(steps.optimizer, reduces=True)
        done += 1
        if rank:
            continue
        steps.tell_round(done, BATCH * MEMBERS, done % EVALUATE_STEPS == 0, TOGETHER)
        if done % CHECKPOINT_EVERY == 0:
            whole = file.with_suffix(".new")
            torch.save({"model": plain.state_dict(), "optimizer": steps.optimizer.state_dict(), "done": done}, whole)
            whole.replace(file)


def torchrun() -> None:
    """Run torchrun's agent, which starts `ddp` again with all others after a death."""
    multiprocessing.set_forkserver_preload([members.__name__])
    config = LaunchConfig(
        min_nodes=MEMBERS,
        max_nodes=MEMBERS,
        nproc_per_node=1,
        run_id="goodput",
        rdzv_backend="c10d",
        rdzv_endpoint=f"{os.environ['MASTER_ADDR']}:{RENDEZVOUS_PORT}",
        rdzv_configs={"is_host": os.environ["RANK"] == "0"},
        max_restarts=ENDLESS,
        start_method="forkserver",
        local_addr=own_address(),
    )
    elastic_launch(config, members.ddp)()


def torchft() -> None:
    """Train as a replica of torchft's DiLoCo. A process beside the first replica runs the lighthouse."""
    from torchft.local_sgd import DiLoCo

    from benchmarks.support.systems.torchft_local_sgd import replica

    rank = int(os.environ["RANK"])
    steps = Steps(rank)
    model, inner = steps.model, steps.optimizer

    def state() -> dict[str, Any]:
        return {"model": model.state_dict(), "inner": inner.state_dict()}

    def load(state: dict[str, Any]) -> None:
        model.load_state_dict(state["model"])
        inner.load_state_dict(state["inner"])

    outer = torch.optim.SGD(model.parameters(), OUTER, MOMENTUM, nesterov=True)
    with (
        replica(PORT, QUORUM, TIMEOUT, state, load) as manager,
        DiLoCo(manager, [model], inner, outer, EVERY, use_bucketization=True),
    ):
        tell(began=True)
        while True:
            before = manager.current_step()
            for _ in range(EVERY):
                steps.take(inner)
            if (done := manager.current_step()) > before:  # otherwise the round was discarded
                steps.tell_round(done, BATCH * EVERY, rank == 0 and done % EVALUATE_ROUNDS == 0)


def lighthouse() -> None:
    """Run torchft's lighthouse."""
    from torchft.coordination import LighthouseServer

    # By default a quorum waits for 100 ms for those that are late, so that half of the members were left out.
    address = f"{os.environ['MASTER_ADDR']}:{PORT}"
    server = LighthouseServer(address, min_replicas=QUORUM, join_timeout_ms=JOIN_TIMEOUT_MS)
    signal.pause()
    server.shutdown()


def hivemind() -> None:
    """Train as a peer of hivemind's Optimizer with local updates. Peers find each other through the first one."""
    import hivemind

    rank, first = int(os.environ["RANK"]), os.environ["MASTER_ADDR"]
    steps = Steps(rank)
    store = TCPStore(first, PORT, is_master=rank == 0, wait_for_workers=False)
    known = store.get("peers").decode().splitlines() if rank else None
    dht = hivemind.DHT(host_maddrs=[f"/ip4/{own_address()}/tcp/0"], initial_peers=known, start=True)
    if rank == 0:
        store.set("peers", "\n".join(map(str, dht.get_visible_maddrs())))
    optimizer = hivemind.Optimizer(
        dht=dht,
        run_id="goodput",
        target_batch_size=BATCH * MEMBERS * EVERY,
        batch_size_per_step=BATCH,
        optimizer=steps.optimizer,
        use_local_updates=True,
        matchmaking_time=MATCHMAKING_S,
        delay_state_averaging=False,
    )
    tell(began=True)
    taken = 0
    while True:
        epoch = optimizer.local_epoch
        steps.take(optimizer)
        taken += 1
        if (done := optimizer.local_epoch) > epoch:
            steps.tell_round(done, BATCH * taken, rank == 0 and done % EVALUATE_ROUNDS == 0)
            taken = 0


def kept(train: Callable[[], None]) -> int:
    """Fork a member that trains, and return its process."""
    if pid := os.fork():
        return pid
    try:
        _is_member() if train is not lighthouse else os.setsid()
        train()
    except Exception:
        traceback.print_exc()
    os._exit(1)


def keep(train: Callable[[], None]) -> None:
    """Fork a member again whenever it has ended. What it started ends with it."""
    while True:
        pid = kept(train)
        os.waitpid(pid, 0)
        with suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
        time.sleep(AGAIN_S)


def _is_member() -> None:
    """Make this process the leader of a group, with the worker's name, by which the benchmark finds it."""
    os.setsid()
    Path("/proc/self/comm").write_text(os.environ["TESTBED_WORKER"])


def main() -> None:
    """Run a system's members on this worker, until this process is killed."""
    system = sys.argv[1]
    if system == "torchrun":
        torchrun()
        return
    importlib.import_module(system)  # once for all forks
    if system == "torchft" and os.environ["RANK"] == "0":
        kept(lighthouse)
    keep({"torchft": torchft, "hivemind": hivemind}[system])


if __name__ == "__main__":
    main()
