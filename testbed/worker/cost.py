"""The cost of a step of each model on one core: `python -m testbed.worker.cost BATCH` prints seconds as JSON."""

from __future__ import annotations

import json
import sys
import time
from statistics import median

import torch
from torch.nn import functional

from testbed.worker import data, models

STEPS = 4
#: The models whose step is measured. A step of a larger one takes seconds, and follows from that of `gpt` by size.
MODELS = ("cnn", "gpt-small", "gpt")
CLASSES = {"cnn": 10, "gpt-small": 103, "gpt": 103}


def step_seconds(name: str, batch: int) -> float:
    """Return the seconds of a gradient over `batch` random samples: the median of STEPS after a first one."""
    model = models.build(name, CLASSES[name], data.CONTEXT, seed=1)
    classes = CLASSES[name]
    shape = (batch, 1, 8, 8) if name == "cnn" else (batch, data.CONTEXT)
    inputs = torch.rand(shape) if name == "cnn" else torch.randint(classes, shape)
    targets = torch.randint(classes, (batch,) if name == "cnn" else shape)
    times = []
    for _ in range(STEPS + 1):
        began = time.perf_counter()
        scores = model(inputs)
        functional.cross_entropy(scores.flatten(0, -2), targets.flatten()).backward()  # type: ignore[no-untyped-call]
        times.append(time.perf_counter() - began)
    return median(times[1:])


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(json.dumps({name: step_seconds(name, int(sys.argv[1])) for name in MODELS}))
