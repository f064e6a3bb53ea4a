"""A chunk's path, from the training loop of one member to the wire and into the values of another, through real code.

A profiler of every thread records each call that passes a chunk on, whose arguments hold the chunk's elements in any
form, and the room of the called function. No room is entered twice on the path out, nor on the path in; CONTRIBUTING.md
names the path.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import pytest
import torch
from torch import Tensor, nn

from testbed import sync
from testbed.plan import Plan
from testbed.sync.allreduce.chunk import LocalValues, PartialSum
from testbed.sync.allreduce.reduction import Contribution
from testbed.sync.transport import Received
from tests.sync import sessions
from tests.sync.plans import chain, names
from tests.waiting import until

pytestmark = pytest.mark.local

SYNC = Path(sync.__file__).parent
MEMBERS = names(3)
#: The types that hold a chunk's elements.
FORMS = (Tensor, memoryview, LocalValues, PartialSum, Contribution, Received)


def room_of(frame: FrameType) -> str | None:
    """Return the folder below `sync` of a frame's code, or `sync` itself; None for other code."""
    file = Path(frame.f_code.co_filename)
    if not file.is_relative_to(SYNC):
        return None
    inner = file.relative_to(SYNC).parts
    return inner[0] if len(inner) > 1 else "sync"


def hands_on(frame: FrameType) -> bool:
    """Return whether the frame's call has a chunk's elements among its arguments."""
    code = frame.f_code
    given = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    return any(isinstance(frame.f_locals.get(name), FORMS) for name in given)


#: The rooms on a chunk's path, in order, by thread.
Paths = dict[threading.Thread, list[str]]


@contextmanager
def traced() -> Iterator[Paths]:
    """Record the paths of chunks on threads that begin in this context."""
    paths: Paths = defaultdict(list)

    def note(frame: FrameType, event: str, _: object) -> None:
        if event != "call" or (room := room_of(frame)) is None or not hands_on(frame):
            return
        path = paths[threading.current_thread()]
        caller = room_of(frame.f_back) if frame.f_back is not None else None
        if not path or room != caller:
            path.append(room)

    threading.setprofile(note)
    try:
        yield paths
    finally:
        threading.setprofile(None)


def contributes(session: sync.Session) -> bool:
    """Return whether the session's member has added its values to its current round."""
    current = session._engine.current._rounds.current
    return current is not None and current.reduction.chunk(0).part is not None


def test_no_room_is_entered_twice(tmp_path: Path) -> None:
    """One step of three members in a chain, whose model is one chunk: m0 is the root, m1 is a relay."""

    there: dict[str, sync.Session] = {}

    def await_parent(member: str) -> None:
        """Wait until the parent has added its values; an earlier sum would be sent on by the parent's own thread."""
        if place := MEMBERS.index(member):
            parent = MEMBERS[place - 1]
            until(lambda: parent in there and contributes(there[parent]))

    def step(session: sync.Session) -> None:
        model = nn.Linear(4, 4, bias=False)
        nn.init.zeros_(model.weight)
        model.weight.grad = torch.full((4, 4), float(MEMBERS.index(session.name)))
        optimizer = torch.optim.SGD(model.parameters(), 1.0)
        with session.gradients(model, optimizer):
            threading.current_thread().name = f"trains {session.name}"
            there[session.name] = session
            await_parent(session.name)
            optimizer.step()
        assert torch.equal(model.weight.detach(), -torch.ones(4, 4))

    with traced() as paths:
        sessions.run(tmp_path, Plan(0, MEMBERS, (chain(MEMBERS),)), step)
    came, sent = (
        [path for thread, path in paths.items() if thread.name.startswith(f"{way} m")] for way in ("from", "to")
    )
    # Out: what a member contributes is encoded, and queued for a connection, whose thread sends it.
    (out,) = [path for thread, path in paths.items() if thread.name == "trains m2"]
    assert out[: out.index("transport") + 1] == ["strategies", "sync", "allreduce", "codecs", "transport"]
    assert sent == [["transport"]] * 4
    # In: m0 adds m1's sum, and the mean goes out; m1 adds m2's sum, takes m0's mean, and passes both on; m2 takes the
    # mean from m1 alone.
    assert sorted(came) == [["transport", "allreduce"]] + [["transport", "allreduce", "transport"]] * 3
