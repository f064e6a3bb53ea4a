"""What a worker computes on."""

from __future__ import annotations

import torch


def device() -> str:
    """What this worker can compute on: `cuda` or `cpu`."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def chosen_device(wanted: str) -> torch.device:
    """The device that a workload names; `auto` is the best there is."""
    return torch.device(device() if wanted == "auto" else wanted)
