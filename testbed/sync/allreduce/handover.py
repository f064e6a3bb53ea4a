"""What a member that comes while others train begins from: the state of one of them, between two steps."""

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

#: A member that has trained holds more than one that comes: momenta that its optimizer makes in its first steps. Adam
#: with float32 for a model in bfloat16, and a copy in float32, is 7 times the model.
MOST_TIMES = 8
#: What torch.save writes beside a tensor's bytes: its name, its shape, its place in the archive. An optimizer's plain
#: values are as many as the model's tensors.
TENSOR_BYTES, ARCHIVE_BYTES = 4096, 1 << 20


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
        try:
            number = unpack(ask(self.source, most_bytes(parts)), parts)
        except SyncError as error:
            raise error.located(f"the state of {self.source}", member=self.source) from error
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
    return FetchAnswer(StateNote(round_number, tuple(sorted(parts))), file.getbuffer())


def _handed_over(part: Stateful) -> dict[str, Any]:
    """A strategy hands over less than a checkpoint of it holds."""
    return part.handover() if isinstance(part, Strategy) else part.state_dict()


def most_bytes(parts: Mapping[str, Stateful]) -> int:
    """The most that another member's state can take, by what this one's is made of."""
    found = [tensor for part in parts.values() for tensor in _tensors(_handed_over(part))]
    return MOST_TIMES * sum(tensor.nbytes + TENSOR_BYTES for tensor in found) + ARCHIVE_BYTES


def _tensors(state: Any) -> Iterator[torch.Tensor]:
    """Those of a state, wherever they stand in it."""
    if isinstance(state, torch.Tensor):
        yield state
    elif isinstance(state, Mapping):
        for inner in state.values():
            yield from _tensors(inner)
    elif isinstance(state, list | tuple):
        for inner in state:
            yield from _tensors(inner)


def unpack(answer: FetchAnswer, parts: Mapping[str, Stateful]) -> int:
    """Give each part the state that came, the model first; the round after which it is. SyncError when it is none.

    What came has the hash that it was sent with, and holds tensors and plain values alone.
    """
    note = answer.note
    if not isinstance(note, StateNote) or note.parts != tuple(sorted(parts)):
        raise SyncError(
            f"what came is {note}, and this member has the parts {sorted(parts)}", rule="parts", given=sorted(parts)
        )
    try:
        _check_archive(answer.data)
        states = torch.load(io.BytesIO(answer.data), map_location="cpu", weights_only=True)
        for name, part in parts.items():
            part.load_state_dict(states[name])
    except Exception as error:  # whatever bytes of another's making do to a reader that was made for files
        raise SyncError(
            f"it can't be read: {error!r}", rule=error.rule if isinstance(error, SyncError) else "unreadable"
        ) from error
    return note.round


def _check_archive(data: memoryview) -> None:
    """torch.save compresses nothing. What says that it unpacks to more than came would take the memory for that."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        claimed = sum(entry.file_size for entry in archive.infolist())
    if claimed > len(data):
        raise SyncError(f"{len(data)} bytes that are to unpack to {claimed}", rule="size", given=claimed)
