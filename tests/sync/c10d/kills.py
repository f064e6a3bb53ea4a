"""Kills ranks while all train over `wan`: `python -m tests.sync.c10d.kills --count 20`.

In each case four ranks train by DistributedDataParallel, and one of them gets SIGKILL at a moment that the seed draws.
The killed rank may be rank 0, whose process has the group's store and starts its controller. The others must end with
an error that names the killed rank, within the group's timeout. Each case prints the seconds that this took.
"""

from __future__ import annotations

import argparse
import random
import re
import sys
import time
from statistics import median

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from tests.sync.c10d.ranks import TIMEOUT_S, Ranks

RANKS = 4
#: The latest kill in seconds after everybody's first step. In this time DDP rearranges its buckets, and plans change.
WITHIN_S = 3.0
WIDTH = 400


def first_step(rank: int) -> None:
    """Take a step; in it rank 0 starts the controller."""
    _train(1)


def trains_until_it_fails(rank: int) -> str:
    """Train until a step fails. Returns its error."""
    try:
        _train(10**6)
    except RuntimeError as error:
        return str(error)
    return ""


def _train(steps: int) -> None:
    model = DistributedDataParallel(nn.Linear(WIDTH, WIDTH), bucket_cap_mb=0.2)
    for _ in range(steps):
        model(torch.ones(4, WIDTH)).sum().backward()


def case(number: int, seed: int) -> tuple[bool, float]:
    """Run a case. Returns whether all other ranks named the killed rank, and the seconds until the last one failed."""
    drawn = random.Random(f"{seed} {number}")
    victim, after_s = drawn.randrange(RANKS), drawn.uniform(0, WITHIN_S)
    others = [rank for rank in range(RANKS) if rank != victim]
    with Ranks(RANKS) as ranks:
        ranks.do(first_step)
        ranks.begin(trains_until_it_fails)
        time.sleep(after_s)
        ranks.processes[victim].kill()
        killed_s = time.monotonic()
        errors = ranks.end(*others)
        took_s = time.monotonic() - killed_s
    named = all(re.search(rf"\brank ?{victim}\b", error) for error in errors)
    print(
        f"case {number}: rank {victim} after {after_s:.2f} s, {took_s:.2f} s: {'named' if named else errors}",
        flush=True,
    )
    return named and took_s < TIMEOUT_S, took_s


def main() -> int:
    """Run all cases. Returns 1 if a killed rank was not named."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    found = [case(number, args.seed) for number in range(args.count)]
    named = sum(its for its, _ in found)
    took = [took_s for _, took_s in found]
    print(
        f"{named} of {args.count} named at all others; {median(took):.2f} s at the median, {max(took):.2f} s at worst"
    )
    return 0 if named == args.count else 1


if __name__ == "__main__":
    sys.exit(main())
