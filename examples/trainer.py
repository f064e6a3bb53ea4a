"""A trainer that owns its loop, as the common libraries have one: gradients by DDP, metrics gathered as objects.

sudo .venv/bin/testbed launch topologies/smoke.yaml --nproc 2 -- torchrun examples/trainer.py
"""

import json
import os
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


@dataclass
class TrainingArguments:
    """What a run is told."""

    max_steps: int = 10
    learning_rate: float = 0.05
    logging_steps: int = 5


class Trainer:
    """Trains a model on batches; rank 0 logs what all have found."""

    def __init__(self, model, args, batches):
        self.model = DDP(model)
        self.args = args
        self.batches = batches
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=args.learning_rate)

    def train(self):
        for step in range(1, self.args.max_steps + 1):
            loss = self.training_step(next(self.batches))
            if step % self.args.logging_steps == 0:
                self.log(step, {"loss": loss, "worker": os.environ.get("TESTBED_WORKER")})

    def training_step(self, batch):
        inputs, targets = batch
        loss = nn.functional.cross_entropy(self.model(inputs), targets)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.item()

    def log(self, step, metrics):
        gathered = [None] * dist.get_world_size()
        dist.all_gather_object(gathered, metrics)
        if dist.get_rank() == 0:
            mean = sum(each["loss"] for each in gathered) / len(gathered)
            workers = len({each["worker"] for each in gathered})
            print(json.dumps({"step": step, "loss": round(mean, 4), "workers": workers}))


def batches(seed):
    """Points, and which of two halves of a plane they lie in."""
    generator = torch.Generator().manual_seed(seed)
    while True:
        inputs = torch.randn(64, 2, generator=generator)
        yield inputs, (inputs.sum(1) > 0).long()


def main():
    dist.init_process_group("gloo")
    model = nn.Sequential(nn.Linear(2, 32), nn.ReLU(), nn.Linear(32, 2))
    Trainer(model, TrainingArguments(), batches(dist.get_rank())).train()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
