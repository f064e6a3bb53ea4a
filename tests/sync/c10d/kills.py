"""Ranks that are killed while all train over `wan`: `python -m tests.sync.c10d.kills --count 20`.

In each case four ranks train by DistributedDataParallel, and one, at a moment that the seed draws, gets SIGKILL: also
rank 0, whose process has the group's store and its controller beside it. The others are to end with an error that names
it, within the group's timeout. How long that takes them is printed with what they said.
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
#: After the first step of all: buckets are arranged anew, plans are swapped, and steps go on.
WITHIN_S = 3.0
WIDTH = 400


def first_step(rank: int) -> None:
    """Rank 0 starts the controller meanwhile."""
    _train(1)


def trains_until_it_fails(rank: int) -> str:
    """What the step said that failed."""
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
    """Whether all the others named who was killed, and the seconds until the last of them had."""
    drawn = random.Random(f"{seed} {number}")
    victim, after_s = drawn.randrange(RANKS), drawn.uniform(0, WITHIN_S)
    others = [rank for rank in range(RANKS) if rank != victim]
    with Ranks(RANKS) as ranks:
        ranks.do(first_step)
        ranks.begin(trains_until_it_fails)
        time.sleep(after_s)
        ranks.processes[victim].kill()
        killed_s = time.monotonic()
        said = ranks.end(*others)
        took_s = time.monotonic() - killed_s
    named = all(re.search(rf"\brank ?{victim}\b", words) for words in said)
    print(
        f"case {number}: rank {victim} after {after_s:.2f} s, {took_s:.2f} s: {'named' if named else said}", flush=True
    )
    return named and took_s < TIMEOUT_S, took_s


def main() -> int:
    """All cases; 1 where one was not named."""
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
