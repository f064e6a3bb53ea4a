"""One member of `benchmarks.ddp`: an ordinary DistributedDataParallel loop; prints its steps' seconds as JSON."""

from __future__ import annotations

import json
import sys
import time

import torch
import torch.distributed as dist
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from testbed import sync
from testbed.worker import data, models


def main(control: str, name: str, address: str, model: str, batch: int, bucket_mb: float, steps: int) -> None:
    """Train `steps` steps; the first ones, in which DDP arranges its buckets, are printed too."""
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


if __name__ == "__main__":
    control, name, address, model, batch, bucket_mb, steps = sys.argv[1:]
    main(control, name, address, model, int(batch), float(bucket_mb), int(steps))
