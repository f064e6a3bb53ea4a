"""Trains a small network by PyTorch's DistributedDataParallel, in the form of its tutorial. It knows of no testbed.

sudo .venv/bin/testbed launch topologies/quickstart.yaml -- python examples/ddp.py
"""

import argparse
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class ToyModel(nn.Module):
    """Two layers, 0.5 MB of gradients."""

    def __init__(self):
        super().__init__()
        self.net1 = nn.Linear(64, 1024)
        self.relu = nn.ReLU()
        self.net2 = nn.Linear(1024, 64)

    def forward(self, x):
        return self.net2(self.relu(self.net1(x)))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=20)
    steps = parser.parse_args().steps

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    model = DDP(ToyModel())
    loss_fn = nn.MSELoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(steps):
        began = time.monotonic()
        optimizer.zero_grad()
        inputs = torch.randn(20, 64)
        loss = loss_fn(model(inputs), inputs)
        loss.backward()
        optimizer.step()
        if rank == 0:
            print(f"step={step} loss={loss.item():.4f} step_seconds={time.monotonic() - began:.3f}")
    # Gloo's thread needs the interpreter's lock to drop the last sum, and the group's end waits for that thread with
    # the lock held (PyTorch 2.13): without a moment between them three of nine short trainings never ended.
    time.sleep(1)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
