"""Trains a small GPT over the characters of Python's own help texts by DistributedDataParallel. It knows of no testbed.

sudo .venv/bin/testbed launch topologies/quickstart.yaml -- python examples/gpt.py
"""

import argparse
import json
import math
import time
from pydoc_data import topics

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel as DDP


class Block(nn.Module):
    """Causal self-attention and a two-layer network."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.ln_1 = nn.LayerNorm(width)
        self.attn = nn.Linear(width, 3 * width, bias=False)
        self.proj = nn.Linear(width, width, bias=False)
        self.ln_2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        q, k, v = (part.unflatten(2, (self.heads, -1)).transpose(1, 2) for part in self.attn(self.ln_1(x)).chunk(3, 2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).flatten(2))
        return x + self.mlp(self.ln_2(x))


class GPT(nn.Module):
    """Scores for the next of each character."""

    def __init__(self, characters, args):
        super().__init__()
        self.wte = nn.Embedding(characters, args.width)
        self.wpe = nn.Embedding(args.context, args.width)
        self.blocks = nn.Sequential(*(Block(args.width, args.heads) for _ in range(args.layers)))
        self.ln_f = nn.LayerNorm(args.width)
        self.head = nn.Linear(args.width, characters, bias=False)
        self.head.weight = self.wte.weight  # tied
        self.apply(self.initialize)

    def initialize(self, module):
        if isinstance(module, (nn.Linear, nn.Embedding)):
            nn.init.normal_(module.weight, std=0.02)

    def forward(self, text):
        x = self.wte(text) + self.wpe.weight[: text.shape[1]]
        return self.head(self.ln_f(self.blocks(x)))


def load():
    """The text as numbers, nine tenths to train with and one to evaluate by, and how many characters there are."""
    text = "".join(topics.topics.values())
    numbers = {character: number for number, character in enumerate(sorted(set(text)))}
    encoded = torch.tensor([numbers[character] for character in text])
    cut = len(encoded) * 9 // 10
    return encoded[:cut], encoded[cut:], len(numbers)


def batch(text, args, generator):
    starts = torch.randint(len(text) - args.context, (args.batch,), generator=generator)
    windows = torch.stack([text[start : start + args.context + 1] for start in starts])
    return windows[:, :-1], windows[:, 1:]


def loss_of(model, inputs, targets):
    return F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())


@torch.no_grad()
def evaluate(model, text, args):
    generator = torch.Generator().manual_seed(0)
    return sum(loss_of(model, *batch(text, args, generator)).item() for _ in range(args.evaluations)) / args.evaluations


def learning_rate(step, args):
    """A linear warm-up, then a cosine down to a tenth."""
    if step < args.warmup:
        return (step + 1) / args.warmup
    progress = (step - args.warmup) / max(args.steps - args.warmup, 1)
    return 0.1 + 0.45 * (1 + math.cos(math.pi * progress))


def scheduled(optimizer, args):
    return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: learning_rate(step, args))


def train(model, optimizer, scheduler, args, rank, text, held_out):
    """The loop; rank 0 prints a JSON line for each evaluation."""
    generator = torch.Generator().manual_seed(args.seed * 1000 + rank)
    for step in range(args.steps):
        if rank == 0 and step % args.evaluate_every == 0:
            loss = evaluate(getattr(model, "module", model), held_out, args)
            print(json.dumps({"step": step, "at": time.time(), "loss": loss}), flush=True)
        optimizer.zero_grad()
        loss_of(model, *batch(text, args, generator)).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()


def arguments(words=None):
    parser = argparse.ArgumentParser()
    for name, value in {
        **{"steps": 513, "warmup": 32, "batch": 8, "evaluate_every": 32, "evaluations": 8, "seed": 1},
        **{"context": 64, "width": 64, "heads": 4, "layers": 2},
    }.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=value)
    parser.add_argument("--learning-rate", type=float, default=3e-3)
    return parser.parse_args(words)


def main():
    args = arguments()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(args.seed)
    text, held_out, characters = load()
    model = DDP(GPT(characters, args))
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.learning_rate)
    train(model, optimizer, scheduled(optimizer, args), args, dist.get_rank(), text, held_out)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
