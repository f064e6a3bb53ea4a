"""What a member that comes while others train begins from: the state of one of them, between two steps."""

from __future__ import annotations

import io
import threading
from collections.abc import Callable, Mapping
from typing import Any

import torch

from testbed.sync.allreduce.fetch import FetchAnswer, FetchRequest, refusal
from testbed.sync.checkpoint import Stateful
from testbed.sync.errors import SyncError
from testbed.sync.strategies.strategy import Strategy

#: A state larger than this is no state: who sets aside room for it must be sure. 64 GiB.
MOST_BYTES = 1 << 36


class StateHandover:
    """A member's part in it: it begins from the state of `source` if it came later, and hands its own over if asked.

    Any thread may call.
    """

    def __init__(self, source: str) -> None:
        self.source = source
        self._parts: Mapping[str, Stateful] = {}
        self._changed = threading.Condition()
        self._wanted: int | None = None
        self._offered: tuple[int, FetchAnswer] | None = None
        self._closed = False

    def share(self, parts: Mapping[str, Stateful], ask: Callable[[str, int], FetchAnswer]) -> int | None:
        """Name what makes up the state. The round after which it is, if this member now has that of its `source`:
        what `ask(source, most bytes)` answers; None if it began with the others. SyncError when it can't be had."""
        self._parts = parts
        if not self.source:
            return None
        number = unpack(ask(self.source, MOST_BYTES), parts)
        self.source = ""
        return number

    def expect(self, epoch: int | None) -> None:
        """A new member of the generation `epoch` will ask for this member's state; None: no member will."""
        self._wanted = epoch

    def offer(self, round_number: int) -> None:
        """This member is between two steps, after a round: hand its state over if it is wanted."""
        if self._wanted is None:
            return
        answer = packed(round_number, self._parts)
        with self._changed:
            if self._wanted is not None:
                self._offered = self._wanted, answer
            self._wanted = None
            self._changed.notify_all()

    def answer(self, member: str, request: FetchRequest, timeout_s: float) -> FetchAnswer:
        """What a new member gets that asks `member` for the state of a generation."""

        def offered() -> bool:
            return self._closed or (self._offered is not None and self._offered[0] >= request.epoch)

        with self._changed:
            self._changed.wait_for(offered, timeout_s)
            state = self._offered
        if state is None or state[0] != request.epoch:
            return refusal(f"{member} has no state of epoch {request.epoch} to hand over")
        return state[1]

    def close(self) -> None:
        """Let go of who waits."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()


def packed(round_number: int, parts: Mapping[str, Stateful]) -> FetchAnswer:
    """The parts' states after a round, as another member may have them."""
    file = io.BytesIO()
    torch.save({name: _handed_over(part) for name, part in parts.items()}, file)
    return FetchAnswer({"round": round_number, "parts": sorted(parts)}, file.getbuffer())


def _handed_over(part: Stateful) -> dict[str, Any]:
    """A strategy hands over less than a checkpoint of it holds."""
    return part.handover() if isinstance(part, Strategy) else part.state_dict()


def unpack(answer: FetchAnswer, parts: Mapping[str, Stateful]) -> int:
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
