"""Train by DistributedDataParallel as in PyTorch's tutorial, with gloo alone and 24 MiB of gradients.

`python -m benchmarks.support.ddp_script STEPS` prints the seconds of its steps as JSON. `benchmarks.backend` runs it
with another backend; it must import nothing of this package.
"""

from __future__ import annotations

import json
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

LAYERS, WIDTH = 6, 1024


def main() -> None:
    """Train as a member of the process group, and print the seconds of each step."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())
    model = DistributedDataParallel(nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS))))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    seconds = []
    for _ in range(int(sys.argv[1])):
        began = time.monotonic()
        inputs = torch.randn(8, WIDTH)
        loss = nn.functional.mse_loss(model(inputs), inputs)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        seconds.append(time.monotonic() - began)
    print(json.dumps({"backend": dist.get_backend(), "seconds": seconds, "loss": loss.item()}))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
