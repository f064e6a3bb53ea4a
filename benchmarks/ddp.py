"""Measure what overlap gains DistributedDataParallel: buckets reduced during the backward pass, or all after it.

    sudo python -m benchmarks.ddp [--rate R] [--delay D] [--model NAME]

Two members, each in a namespace of its own on an emulated network of two sites, train the character GPT with an
ordinary DDP loop and `session.ddp_hook`. Small buckets are reduced while the backward pass goes on. One bucket for all
gradients is full only at the end of the backward pass, so nothing overlaps. A row is a mode with its median step. Both
modes take turns, so that a change of the host's load affects both. Needs root.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from benchmarks.support.controller import controller
from benchmarks.support.options import Options, positive
from benchmarks.support.program import run_program
from benchmarks.support.table import Table, progress, show
from testbed import sync
from testbed.emulation.network.network import Network
from testbed.emulation.testbed import Testbed
from testbed.spec.topology import Topology
from testbed.worker import data, models

#: Steps that are left out: DDP arranges its buckets in the first one, and the second uses them for the first time.
WARM_UP = 3
REPEATS, QUICK_REPEATS = 3, 1
#: The first word of the command by which this program runs one member.
MEMBER = "member"
OVERLAP, NONE = "overlap", "no overlap"
#: The size of a bucket that holds all gradients.
ONE_BUCKET_MIB = 1000.0


@contextmanager
def two_sites(rate: str, delay: str) -> Iterator[Network]:
    """Build a network of two sites with a namespace for each worker, and remove it when the context is left."""
    value = {
        "name": "ddp",
        "sites": {"paris": {"workers": 1}, "tokyo": {"workers": 1}},
        "links": [{"between": ["paris", "tokyo"], "rate": rate, "delay": delay}],
    }
    topology = Topology.from_value(value, Path("ddp.yaml"))
    with Testbed(topology, workers="namespaces") as testbed:
        yield testbed.network


def train(network: Network, model: str, batch: int, bucket_mb: float, steps: int) -> dict[str, Any]:
    """Run both members' loops. Returns the figures that the first one printed.

    Raises:
        RuntimeError: a member failed.
    """
    workers = network.topology.workers
    with controller([worker.name for worker in workers], 4_000_000) as where, ExitStack() as stack:
        processes = []
        for worker in workers:
            places = (where.address(worker.name), worker.name, network.address(worker))
            words = [*places, model, str(batch), str(bucket_mb), str(steps)]
            command = [sys.executable, "-m", "benchmarks.ddp", MEMBER, *words]
            popen = network.container(worker.name).popen
            processes.append(stack.enter_context(popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)))
        outputs = [process.communicate() for process in processes]
    for process, (_, errors) in zip(processes, outputs, strict=True):
        if process.returncode:
            raise RuntimeError(errors.decode(errors="replace"))
    printed: dict[str, Any] = json.loads(outputs[0][0])
    return printed


def member(control: str, name: str, address: str, model: str, batch: int, bucket_mb: float, steps: int) -> None:
    """Train one member with an ordinary DDP loop, and print the seconds and losses of its steps as JSON.

    Args:
        control: The controller's address.
        name: The member's name.
        address: The member's address on the emulated network.
        model: The model's name.
        batch: Samples of a step.
        bucket_mb: MiB of gradients in a bucket.
        steps: Steps to train; the first ones, in which DDP arranges its buckets, are printed too.
    """
    torch.set_num_threads(1)
    store = dist.HashStore()  # type: ignore[attr-defined]  # public, but not said to be
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    text = data.text()
    with sync.join(control, name, address) as session:
        net = DistributedDataParallel(models.build(model, text.classes, data.CONTEXT, seed=1), bucket_cap_mb=bucket_mb)
        net.register_comm_hook(session, session.ddp_hook)
        optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
        draw = torch.Generator().manual_seed(sum(name.encode()))
        seconds, losses = [], []
        for _ in range(steps):
            began = time.monotonic()
            chosen = torch.randint(len(text.inputs), (batch,), generator=draw)
            loss = functional.cross_entropy(net(text.inputs[chosen]).flatten(0, -2), text.targets[chosen].flatten())
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            seconds.append(time.monotonic() - began)
            losses.append(loss.item())
        rounds = session.rounds
    dist.destroy_process_group()
    print(json.dumps({"seconds": seconds, "losses": losses, "rounds": rounds}))


def main() -> int:
    """Measure both modes and print them."""
    parser = Options(__doc__)
    parser.add_argument("--rate", default="100mbit", help="the link's rate (default %(default)s)")
    parser.add_argument("--delay", default="2ms", help="the link's delay, one way (default %(default)s)")
    parser.add_argument("--model", default="gpt", choices=("gpt-small", "gpt", "gpt-medium"))
    parser.add_argument("--batch", type=positive, default=16, help="samples of a step (default %(default)s)")
    parser.add_argument("--steps", type=positive, default=25, help="measured steps of a repeat (default %(default)s)")
    parser.add_repeats(REPEATS, QUICK_REPEATS)
    parser.add_argument("--bucket", type=float, default=0.5, help="MiB of gradients in a bucket that overlaps")
    args = parser.parse()
    bucket_sizes = {OVERLAP: args.bucket, NONE: ONE_BUCKET_MIB}
    times: dict[str, list[float]] = {mode: [] for mode in bucket_sizes}
    buckets: dict[str, float] = {}
    with two_sites(args.rate, args.delay) as network:
        backend = network.shaper.name
        for number in range(args.repeats):
            for mode, bucket_mb in bucket_sizes.items():
                printed = train(network, args.model, args.batch, bucket_mb, WARM_UP + args.steps)
                times[mode] += printed["seconds"][WARM_UP:]
                buckets[mode] = printed["rounds"] / (WARM_UP + args.steps)
                progress(f"{number + 1} of {args.repeats}, {mode}: {median(times[mode]) * 1e3:.0f} ms a step")
    steps = {mode: median(found) for mode, found in times.items()}
    ratio = steps[OVERLAP] / steps[NONE]
    rows = [[mode, f"{buckets[mode]:.1f}", f"{steps[mode] * 1e3:.0f} ms"] for mode in bucket_sizes]
    title = f"DDP across two sites, {args.rate}, {args.delay} one way, {args.model}, batch {args.batch}"
    note = f"a step with overlap takes {ratio:.2f} of the time without"
    figures = {
        "bucket_mib": args.bucket,
        "repeats": args.repeats,
        "steps": args.steps,
        "seconds_per_step": steps,
        "overlap_to_none": ratio,
    }
    show(
        [Table(title, ("mode", "buckets a step", "median step"), rows, [note])],
        {**figures, "rate": args.rate, "delay": args.delay, "model": args.model, "batch": args.batch},
        as_json=args.json,
        backend=backend,
    )
    return 0


if __name__ == "__main__":
    if sys.argv[1:2] == [MEMBER]:
        control, name, address, model, batch, bucket_mb, steps = sys.argv[2:]
        member(control, name, address, model, int(batch), float(bucket_mb), int(steps))
    else:
        run_program(main)
