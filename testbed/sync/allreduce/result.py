"""A round that is over."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch

from testbed.protocol import MeanSlice


@dataclass(slots=True)
class Tally:
    """What a round moved at this member, and what it cost.

    `waited` holds for how long after the round's begin each peer's last chunk came; `receive_s` counts the time from
    a chunk's head to its end, `add_s` that in additions, `send_s` that in sending, over all threads. In seconds.
    """

    sent_bytes: int = 0
    received_bytes: int = 0
    receive_s: float = 0.0
    add_s: float = 0.0
    send_s: float = 0.0
    waited: Mapping[str, float] = field(default_factory=dict)


class RoundMeter:
    """Counts a round's tally at a member. No lock of its own; times are monotonic."""

    def __init__(self) -> None:
        self._tally = Tally()
        self._arrived: dict[str, float] = {}

    def received(self, source: str, count: int, seconds: float) -> float:
        """So many bytes came from a member within so long; now."""
        now = time.monotonic()
        self._tally.received_bytes += count
        self._tally.receive_s += seconds
        self._arrived[source] = now
        return now

    def added(self, since: float) -> None:
        """The time since then went into additions."""
        self._tally.add_s += time.monotonic() - since

    def tally(self, began: float, sent_bytes: int, send_s: float) -> Tally:
        """All of it, for a member that began the round at that time and sent that much."""
        waited = {peer: max(at - began, 0.0) for peer, at in self._arrived.items()}
        return replace(self._tally, sent_bytes=sent_bytes, send_s=send_s, waited=waited)


@dataclass(frozen=True, slots=True)
class RoundResult:
    """What `allreduce` did: `tensor` holds the mean. Times in seconds since 1970.

    `whole` says that the mean is all members'; a plan with groups has rounds in which each group has its own.
    `slices` say whose updates the mean is of: one, unless a member was lost in the middle of the round. `lost` and
    `duplicated` count members whose update a mean left out, or that came a second time.
    """

    tensor: torch.Tensor
    round: int
    epoch: int
    whole: bool
    started_s: float
    finished_s: float
    lost: int
    duplicated: int
    slices: tuple[MeanSlice, ...]
    tally: Tally
