"""A member that trains five steps under DDP: `python -m tests.sync.ddp_member ADDRESS NAME MODE`.

If MODE is `failing`, m1 leaves before the third step. Prints the number of rounds, and the parameters.
"""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from testbed import sync
from tests.sync.strategies.training import batch, flat, model

address, name, failing = sys.argv[1], sys.argv[2], sys.argv[3] == "failing"
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
with sync.join(address, name, "127.0.0.1") as session:
    net = DistributedDataParallel(model(), bucket_cap_mb=0.0005)
    net.register_comm_hook(session, session.ddp_hook)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for number in range(5):
        if failing and number == 2 and name == "m1":
            break
        inputs, targets = batch(name, number)
        optimizer.zero_grad()
        (net(inputs) - targets).square().mean().backward()
        optimizer.step()
    print(session.rounds, flat(net).tolist())
dist.destroy_process_group()
