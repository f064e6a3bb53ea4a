"""The state that a new member starts from: the state of another member between two steps."""

from __future__ import annotations

import io
import threading
import zipfile
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from testbed.sync.allreduce.fetch import FetchAnswer, FetchRequest, StateNote, refusal
from testbed.sync.checkpoint import Stateful
from testbed.sync.errors import SyncError
from testbed.sync.strategies.strategy import Strategy

#: The largest ratio of a trained member's state to a new member's: its optimizer allocates memory in its first steps.
#: Adam with float32 for a model in bfloat16, and a copy in float32, is 7 times the model.
MOST_TIMES = 8
#: Overhead of torch.save for each tensor (name, shape, place in the archive) and for the archive. An optimizer has as
#: many plain values as the model has tensors.
TENSOR_BYTES, ARCHIVE_BYTES = 4096, 1 << 20


class StateHandover:
    """A member's part in handovers of state. Any thread may call the methods.

    Args:
        source: The member whose state this member starts from; empty if this member began with the others.
    """

    def __init__(self, source: str) -> None:
        self.source = source
        self._parts: Mapping[str, Stateful] = {}
        self._changed = threading.Condition()
        self._wanted: int | None = None
        #: The generation that the offered state is for, and the answer; None if no state is offered.
        self._offered: tuple[int, FetchAnswer] | None = None
        self._offered_after = 0  # the round of the offered state
        self._closed = False

    def share(self, parts: Mapping[str, Stateful], ask: Callable[[str, int], FetchAnswer]) -> int | None:
        """Set the parts of this member's state, and fetch their state from `source` if this member joined later.

        Args:
            parts: The parts by name.
            ask: Called with the source and the largest size in bytes; returns the answer.

        Returns:
            The round to which the fetched state belongs; None if this member began with the others.

        Raises:
            SyncError: The state can't be fetched or loaded.
        """
        self._parts = parts
        if not self.source:
            return None
        try:
            number = unpack(ask(self.source, most_bytes(parts)), parts)
        except SyncError as error:
            raise error.located(f"the state of {self.source}", member=self.source) from error
        self.source = ""
        return number

    def expect(self, epoch: int | None) -> None:
        """Expect a request for this member's state by a new member of generation `epoch`; None expects no request."""
        self._wanted = epoch

    def offer(self, round_number: int) -> None:
        """Pack the state after a round if a request is expected. Called between two steps.

        The packed state takes as much memory as the parts, and is dropped after the next round: the new member takes
        part in that round, so that it has loaded the state.
        """
        if self._wanted is None:
            with self._changed:
                if round_number > self._offered_after:
                    self._offered = None
            return
        answer = packed(round_number, self._parts)
        with self._changed:
            if self._wanted is not None:
                self._offered, self._offered_after = (self._wanted, answer), round_number
            self._wanted = None
            self._changed.notify_all()

    def answer(self, member: str, request: FetchRequest, timeout_s: float) -> FetchAnswer:
        """Return the answer to a new member's request, once `offer` has packed the state of that generation."""

        def offered() -> bool:
            return self._closed or (self._offered is not None and self._offered[0] >= request.epoch)

        with self._changed:
            self._changed.wait_for(offered, timeout_s)
            state = self._offered
        if state is None or state[0] != request.epoch:
            return refusal(f"{member} has no state to hand over for generation {request.epoch}")
        return state[1]

    def close(self) -> None:
        """Wake all threads that wait for a state."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()


def packed(round_number: int, parts: Mapping[str, Stateful]) -> FetchAnswer:
    """Return the parts' states after a round, as an answer to a new member."""
    file = io.BytesIO()
    torch.save({name: _handed_over(part) for name, part in parts.items()}, file)
    return FetchAnswer(StateNote(round_number, tuple(sorted(parts))), file.getbuffer())


def _handed_over(part: Stateful) -> dict[str, Any]:
    """Return the part's state for another member, which excludes a strategy's residuals."""
    return part.handover() if isinstance(part, Strategy) else part.state_dict()


def most_bytes(parts: Mapping[str, Stateful]) -> int:
    """Return the size limit in bytes for another member's state: MOST_TIMES the size of this member's own state."""
    found = [tensor for part in parts.values() for tensor in _tensors(_handed_over(part))]
    return MOST_TIMES * sum(tensor.nbytes + TENSOR_BYTES for tensor in found) + ARCHIVE_BYTES


def _tensors(state: Any) -> Iterator[torch.Tensor]:
    if isinstance(state, torch.Tensor):
        yield state
    elif isinstance(state, Mapping):
        for inner in state.values():
            yield from _tensors(inner)
    elif isinstance(state, list | tuple):
        for inner in state:
            yield from _tensors(inner)


def unpack(answer: FetchAnswer, parts: Mapping[str, Stateful]) -> int:
    """Load a received state into the parts, the model first. Returns the round to which the state belongs.

    The answer was checked against its hash, and is loaded as tensors and plain values alone.

    Raises:
        SyncError: The answer is not a state of these parts.
    """
    note = answer.note
    if not isinstance(note, StateNote) or note.parts != tuple(sorted(parts)):
        raise SyncError(
            f"the answer is {note}, but this member has the parts {sorted(parts)}", rule="parts", given=sorted(parts)
        )
    try:
        _check_archive(answer.data)
        states = torch.load(io.BytesIO(answer.data), map_location="cpu", weights_only=True)
        for name, part in parts.items():
            part.load_state_dict(states[name])
    except Exception as error:  # torch.load may raise anything on bytes that another member made
        raise SyncError(
            f"the state can't be loaded: {error!r}", rule=error.rule if isinstance(error, SyncError) else "unreadable"
        ) from error
    return note.round


def _check_archive(data: memoryview) -> None:
    """Reject an archive that unpacks to more bytes than it has: torch.save never compresses, an attacker may."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        claimed = sum(entry.file_size for entry in archive.infolist())
    if claimed > len(data):
        raise SyncError(f"the state's {len(data)} bytes claim to unpack to {claimed}", rule="size", given=claimed)
