"""Send pacing: partial sums that are ahead of what others wait for yield to it where there is a queue.

A member has all of its own at once, and its root can use a chunk only when every member's has come. What a fast
member sends far ahead of that takes room on links that the slowest one needs:

    fast  -- far ahead --.
    fast  -- far ahead ---> the root's link, full: the mean of a chunk waits for the slowest, which gets a third of
    slow  -- as it can --'  that link, however little it would need

Of four members with 200 Mbit/s, one of them with 50, that one sent at 30 Mbit/s until the others were through, and a
round took 1.34 × its bound; with this 1.08 to 1.21 ×. So partial sums that are more than AHEAD in front of the means
go out only while the path has no queue. Elsewhere nothing is held back: on a path that loses packets now and then all
that stalls has been caught up with by the end, and a round whose members kept in step took three times as long.

What is ahead by no more than fills the pipe is never held back: a chunk at each hop of its tree, there and back. Of
NetStorm's nine sites with 2 MB, whose slices have a few chunks, a tenth is less than one of them. And what fits into
the time that a mean takes to come back, which is measured: over round trips of 100 to 250 ms, rounds of 0.7 to 0.9 s
took 0.2 s more while that was held back. Nothing waits for ever: of all chunks that are not final anywhere the front
one is at the front at every member.

What one round has put into the queues for other members, until it has left.
"""

from __future__ import annotations

import heapq
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from testbed.plan import Group, Tree
from testbed.sync.allreduce.chunk import Part
from testbed.sync.allreduce.chunk_codec import ChunkHeader, ChunkHeaderFormat, Encoded, Kind
from testbed.sync.allreduce.role import Chunk, Layout
from testbed.sync.transport import Frame, Outbox

#: How far ahead of the means partial sums may always be, as a part of their slice, and in chunks for each hop of their
#: tree. Parts of 0.05 to 0.1 were as good, 0.25 gave back half of what is won.
AHEAD, CHUNKS_A_HOP = 0.1, 1

#: And so many times the part of the round before that a mean took to come back. With just that part a round takes as
#: long as the one before, however long that was: over constant links, with round trips of 10 to 166 ms, rounds took
#: 1.15 s for all of some runs and 0.91 s in others. With 1.5 they took 1.0 s in each, with 2 0.95 s, and four members
#: with 200 Mbit/s, where nothing comes back late, as long as before.
ROOM = 2.0


class PacedSum(NamedTuple):
    """A chunk's partial sum that may be passed on: at once when means are there up to `due`."""

    due: float
    number: int
    part: Part


class SendPacing:
    """One round's, by next hop. No lock of its own; times are monotonic.

    Where elements have keys nothing is ahead: there no mean comes before all of its key is reduced. `returns` is the
    part of a round that a mean takes to come back, as the round before has shown it; 1 as long as nothing is known.
    """

    def __init__(self, layout: Layout, group: Group, returns: float = 1.0) -> None:
        self._layout = layout
        chunks = Counter(chunk.tree for chunk in layout.chunks)
        self._reach = [max(_reach(tree, chunks[number]), ROOM * returns) for number, tree in enumerate(group.trees)]
        self._returns = returns
        self._released: dict[int, float] = {}
        self._least_s = float("inf")
        self._ended = 0.0
        self._held: dict[str, list[PacedSum]] = {}
        self._final = bytearray(len(layout.chunks))
        self._finalized = 0

    @property
    def peers(self) -> tuple[str, ...]:
        """Those for whom something is held."""
        return tuple(peer for peer, held in self._held.items() if held)

    def hold(self, peer: str, number: int, part: Part) -> None:
        """A chunk is to be passed on to `peer`, in its turn."""
        chunk = self._layout.chunks[number]
        heapq.heappush(self._held.setdefault(peer, []), PacedSum(chunk.front - self._reach[chunk.tree], number, part))

    @property
    def returns(self) -> float:
        """The part of this round that a mean took to come back, at the least; what it was before where none did."""
        if not self._released or self._least_s == float("inf"):
            return self._returns
        return self._least_s / max(self._ended - min(self._released.values()), self._least_s)

    def finalize(self, number: int, now: float) -> None:
        """The mean of a chunk is there."""
        self._ended = now
        if (released := self._released.get(number)) is not None:
            self._least_s = min(self._least_s, now - released)
        self._final[number] = 1
        order = self._layout.front_first
        while self._finalized < len(order) and self._final[order[self._finalized]]:
            self._finalized += 1

    def release(self, peer: str, crowded: Callable[[], bool], now: float) -> PacedSum | None:
        """What goes next to `peer`; None when nothing is held, or all of it is far ahead and the way `crowded`."""
        held = self._held.get(peer)
        if not held or (held[0].due > self._front() and crowded()):
            return None
        self._released[held[0].number] = now
        return heapq.heappop(held)

    def _front(self) -> float:
        """Where the first chunk lies whose mean is not there."""
        order = self._layout.front_first
        if self._layout.keys or self._finalized == len(order):
            return 1.0
        return self._layout.chunks[order[self._finalized]].front


def _reach(tree: Tree, chunks: int) -> float:
    """How far ahead the partial sums of a tree with so many chunks may be, as a part of its slice."""
    hops = sum(max((len(_path(member, of)) for member in of), default=0) for of in (tree.reduce, tree.broadcast))
    return max(AHEAD, CHUNKS_A_HOP * hops / max(chunks, 1))


def _path(member: str, parents: Mapping[str, str]) -> list[str]:
    """The members on the way to the root."""
    path = []
    while member in parents:
        member = parents[member]
        path.append(member)
    return path


class OutgoingFrames:
    """Of round `number` under the plan of an `epoch`, for a tensor of `elements`. Any thread may call.

    `steady` says that all whom frames may pass have begun the round before this one, and have had a tensor of this
    shape: they take its frames at once, so those may go by the plan's auxiliary routes. `on_left(peer)` is called when
    a frame has left.
    """

    def __init__(
        self,
        outbox: Outbox,
        headers: ChunkHeaderFormat,
        number: int,
        epoch: int,
        elements: int,
        steady: bool,
    ) -> None:
        self.sent_bytes = 0
        self.on_left: Callable[[str], None] = lambda peer: None
        self._outbox = outbox
        self._headers = headers
        self._number = number
        self._epoch = epoch
        self._elements = elements
        self._table = epoch if steady else None
        self._queued = 0
        self._none_queued = threading.Condition()

    @property
    def all_left(self) -> bool:
        """Whether nothing is queued now."""
        return not self._queued

    def await_all_left(self, timeout_s: float) -> bool:
        """Wait until nothing is queued any more; False when `timeout_s` have passed before."""
        with self._none_queued:
            return self._none_queued.wait_for(lambda: not self._queued, max(timeout_s, 0))

    def crowded(self, peer: str) -> bool:
        """Whether what is sent to `peer` now would only wait."""
        return self._outbox.crowded(peer)

    def frame(self, chunk: Chunk, kind: Kind, part: Part, encoded: Encoded) -> Frame:
        """A frame that brings a chunk made of `part`."""
        assert part.successor is not None
        header = ChunkHeader(
            kind=kind,
            dtype=encoded.code,
            tree=chunk.tree,
            epoch=self._epoch,
            successor=part.successor,
            round=self._number,
            elements=self._elements,
            offset=chunk.start,
            weight=part.weight,
            contributors=part.contributors,
            scale=encoded.scale,
            overlaps=part.overlaps,
        )
        return Frame(self._headers.pack(header), len(encoded.data))

    def put(self, peers: Sequence[str], chunk: Chunk, kind: Kind, frame: Frame, data: memoryview) -> None:
        """Have a frame sent to each of `peers`.

        Older rounds go first, then the front of each slice; a mean before a partial sum, since it is further on its
        way. Parts of slices, not numbers of chunks: slices of unequal length advance alike, as their shares were made
        for. By numbers the short ones were over early, and the rest of a long one was left to its own edges.
        """
        with self._none_queued:
            self._queued += len(peers)
            self.sent_bytes += len(peers) * (self._outbox.head_bytes + len(data))
        priority = (self._number, chunk.front, int(kind is Kind.PARTIAL), chunk.tree)
        self._outbox.put(peers, priority, frame, data, self._left, self._table)

    def _left(self, peer: str) -> None:
        with self._none_queued:
            self._queued -= 1
            if not self._queued:
                self._none_queued.notify_all()
        self.on_left(peer)
