"""When runs came to a loss that all of them reached: how long each took to learn as much. Pure, but for the reading.

The loss of one round is that of a few batches, and noisy; what counts is its mean over the last rounds.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable, Sequence
from functools import lru_cache
from pathlib import Path

import msgspec

#: Rounds that the loss is averaged over. In the quickstart, whose rounds see 256 images, the loss of one round is off
#: that mean by a quarter at the median.
ROUNDS = 10

#: (seconds since training began, loss) of each round, in order.
Curve = Sequence[tuple[float, float]]


class LossLine(msgspec.Struct, gc=False):
    """A line of `rounds.jsonl`, as far as it says what was learned by when."""

    round: int
    finished_s: float
    metrics: dict[str, float | None] = {}


@lru_cache(maxsize=1000)
def read_curve(run: Path) -> Curve:
    """Return the loss of each round of the run in a directory that is over, in the mean over its members; empty where
    none is recorded."""
    try:
        began = float(json.loads((run / "manifest.json").read_text(encoding="utf-8"))["training_started_s"])
        lines = msgspec.json.Decoder(LossLine).decode_lines((run / "rounds.jsonl").read_bytes())
    except (OSError, ValueError, KeyError, TypeError):
        return ()
    rounds: dict[int, list[tuple[float, float]]] = {}
    for line in lines:
        if (loss := line.metrics.get("loss")) is not None:
            rounds.setdefault(line.round, []).append((line.finished_s - began, loss))
    return [
        (max(at_s for at_s, _ in its), sum(loss for _, loss in its) / len(its)) for _, its in sorted(rounds.items())
    ]


def common_loss(curves: Iterable[Curve]) -> float | None:
    """Return the lowest loss that each of these runs reached, of those that have a loss at all."""
    return max((min(loss for _, loss in _smoothed(curve)) for curve in curves if curve), default=None)


def seconds_to(loss: float | None, curve: Curve) -> float | None:
    """Return when a run came to a loss for the first time; None where it never did."""
    return next((at_s for at_s, its in _smoothed(curve) if loss is not None and its <= loss), None)


def _smoothed(curve: Curve) -> list[tuple[float, float]]:
    """Return the means over the last ROUNDS rounds: of fewer, as long as there are no more."""
    last: deque[float] = deque(maxlen=ROUNDS)
    found = []
    for at_s, loss in curve:
        last.append(loss)
        found.append((at_s, sum(last) / len(last)))
    return found
