"""What a member that comes while others train begins from: the state of one of them, between two steps."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any

import torch

from testbed.sync.allreduce.fetch import Answer
from testbed.sync.checkpoint import Stateful
from testbed.sync.errors import SyncError
from testbed.sync.strategies.strategy import Strategy

#: A state larger than this is no state: who sets aside room for it must be sure. 64 GiB.
MOST_BYTES = 1 << 36


def packed(round_number: int, parts: Mapping[str, Stateful]) -> Answer:
    """The parts' states after a round, as another member may have them."""
    file = io.BytesIO()
    torch.save({name: _handed_over(part) for name, part in parts.items()}, file)
    return Answer({"round": round_number, "parts": sorted(parts)}, file.getbuffer())


def _handed_over(part: Stateful) -> dict[str, Any]:
    """A strategy hands over less than a checkpoint of it holds."""
    return part.handover() if isinstance(part, Strategy) else part.state_dict()


def unpack(answer: Answer, parts: Mapping[str, Stateful]) -> int:
    """Give each part the state that came, the model first; the round after which it is. SyncError when it is none.

    What came has the hash that it was sent with, and holds tensors and plain values alone.
    """
    if sorted(parts) != answer.note.get("parts") or not isinstance(number := answer.note.get("round"), int):
        raise SyncError(f"the state has the parts {answer.note.get('parts')}, this member {sorted(parts)}")
    try:
        states = torch.load(io.BytesIO(answer.data), map_location="cpu", weights_only=True)
    except (RuntimeError, ValueError, EOFError) as error:
        raise SyncError(f"the state can't be read: {error}") from error
    for name, part in parts.items():
        part.load_state_dict(states[name])
    return number
