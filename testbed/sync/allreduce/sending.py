"""Send pacing, which holds partial sums back while they would delay more urgent ones, and a round's queued frames.

A member has all of its own values at once, but a root can use a chunk only when every member's partial sum has come.
Chunks that a fast member sends far ahead of the means take capacity of links that the slowest member needs:

    fast member  -- far ahead --.
    fast member  -- far ahead ---> the root's link is full: the slowest member gets a third of it, however little it
    slow member  ---------------'  needs, and each mean waits for that member

With four members, three at 200 Mbit/s and one at 50 Mbit/s, the slow one sent at 30 Mbit/s until the others had
finished, and a round took 1.34 × its bound. With send pacing it takes 1.08 to 1.21 ×. So partial sums that are far
ahead of the means are sent only while the path has no queue. Without a queue nothing is held back, so that a member can
catch up after each stall of a path that loses packets now and then. When pacing kept members in step on such paths too,
a round took three times as long.

Three limits keep enough on the way, and a chunk is held back only beyond all of them:

- AHEAD, a part of the slice.
- A chunk for each hop of the tree, up and down. With NetStorm's nine sites and 2 MB a slice has a few chunks, and a
  tenth of it is less than one.
- The time that a mean takes to come back, which is measured. Over round trips of 100 to 250 ms, rounds of 0.7 to 0.9 s
  took 0.2 s longer without this limit.

No chunk waits forever: a member never holds the first chunk for which it has no mean. So every member sends the first
of the chunks whose mean exists nowhere yet, as soon as the earlier means have reached the member.
"""

from __future__ import annotations

import heapq
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from testbed.plan import Group, Tree, depth
from testbed.sync.allreduce.chunk import Part
from testbed.sync.allreduce.chunk_codec import ChunkHeader, ChunkHeaderFormat, Encoded, Kind
from testbed.sync.allreduce.role import Chunk, Layout
from testbed.sync.transport import Frame, Outbox

#: The always allowed lead of partial sums over the means, as a part of their slice, and in chunks for each hop of their
#: tree. Parts from 0.05 to 0.1 were equally good; 0.25 lost half of the gain.
AHEAD, CHUNKS_A_HOP = 0.1, 1

#: The factor on the return time of a mean in the previous round, which gives another allowed lead. With a factor of 1 a
#: round takes as long as the one before, however long that was: over constant links with round trips of 10 to 166 ms,
#: rounds took 1.15 s in all of some runs and 0.91 s in others. With 1.5 they took 1.0 s in each run, with 2 0.95 s.
#: Rounds of four members with 200 Mbit/s, to which means return at once, took as long as before.
RETURN_FACTOR = 2.0


class PacedSum(NamedTuple):
    """A chunk's partial sum that send pacing holds back, and the progress at which it may be sent."""

    #: The partial sum may be sent at once when the means up to this part of the slice are final.
    due: float
    #: The chunk's number.
    number: int
    part: Part


class SendPacing:
    """The send pacing of one round, by next hop. The caller holds the round's lock; times are monotonic.

    In trees with keys nothing is held back, because no mean comes before its whole key is reduced.

    Args:
        layout: The round's chunks.
        group: The group of the round's members, with its trees.
        return_part: The least time that a mean took to come back in the previous round, as a part of that round; 1 if
            it is unknown.
    """

    def __init__(self, layout: Layout, group: Group, return_part: float = 1.0) -> None:
        self._layout = layout
        chunks = Counter(chunk.tree for chunk in layout.chunks)
        self._leads = [
            max(_lead(tree, chunks[number]), RETURN_FACTOR * return_part) for number, tree in enumerate(group.trees)
        ]
        self._return_part = return_part
        self._released: dict[int, float] = {}
        self._least_s = float("inf")
        self._ended = 0.0
        self._held: dict[str, list[PacedSum]] = {}
        self._final = bytearray(len(layout.chunks))
        self._finalized = 0

    @property
    def peers(self) -> tuple[str, ...]:
        """The peers for which partial sums are held."""
        return tuple(peer for peer, held in self._held.items() if held)

    def hold(self, peer: str, number: int, part: Part) -> None:
        """Hold a chunk's partial sum for `peer` until it is released."""
        chunk = self._layout.chunks[number]
        heapq.heappush(self._held.setdefault(peer, []), PacedSum(chunk.front - self._leads[chunk.tree], number, part))

    @property
    def return_part(self) -> float:
        """The least time that a mean took to come back, as a part of this round; the previous value before a mean."""
        if not self._released or self._least_s == float("inf"):
            return self._return_part
        return self._least_s / max(self._ended - min(self._released.values()), self._least_s)

    def finalize(self, number: int, now: float) -> None:
        """Record that the mean of a chunk is final here."""
        self._ended = now
        if (released := self._released.get(number)) is not None:
            self._least_s = min(self._least_s, now - released)
        self._final[number] = 1
        order = self._layout.front_first
        while self._finalized < len(order) and self._final[order[self._finalized]]:
            self._finalized += 1

    def release(self, peer: str, crowded: Callable[[], bool], now: float) -> PacedSum | None:
        """Return the next partial sum to send to `peer`, and stop holding it.

        Args:
            peer: The next hop.
            crowded: Returns whether a frame for the peer would wait behind others.
            now: The current time.

        Returns:
            None if nothing is held, or the next one is far ahead of the means and the path is crowded.
        """
        held = self._held.get(peer)
        if not held or (held[0].due > self._front() and crowded()):
            return None
        self._released[held[0].number] = now
        return heapq.heappop(held)

    def _front(self) -> float:
        """Return the `front` of the first chunk without a mean; 1 if there is none."""
        order = self._layout.front_first
        if self._layout.keys or self._finalized == len(order):
            return 1.0
        return self._layout.chunks[order[self._finalized]].front


def _lead(tree: Tree, chunks: int) -> float:
    """Return the allowed lead of the partial sums of a tree with `chunks` chunks, as a part of its slice."""
    hops = sum(max((depth(member, of) for member in of), default=0) for of in (tree.reduce, tree.broadcast))
    return max(AHEAD, CHUNKS_A_HOP * hops / max(chunks, 1))


class OutgoingFrames:
    """The frames that a round has queued and sent. Any thread may call.

    Args:
        steady: True if all members that may forward frames have begun the previous round and have had a tensor of this
            shape. They take frames at once, so frames may use the plan's auxiliary routes.

    Attributes:
        sent_bytes: The bytes of all frames that were queued.
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
        self._outbox = outbox
        self._headers = headers
        self._number = number
        self._epoch = epoch
        self._elements = elements
        self._table = epoch if steady else None
        self._queued = 0
        self._given_up = False
        self._none_queued = threading.Condition()

    @property
    def all_sent(self) -> bool:
        """True if no frame is queued now."""
        return not self._queued

    def await_all_sent(self, timeout_s: float) -> bool:
        """Wait until no frame is queued, or `give_up` is called. Returns False if `timeout_s` have passed before."""
        with self._none_queued:
            return self._none_queued.wait_for(lambda: self._given_up or not self._queued, max(timeout_s, 0))

    def give_up(self) -> None:
        """End the wait for queued frames, now and later, because frames for a lost peer never leave."""
        with self._none_queued:
            self._given_up = True
            self._none_queued.notify_all()

    def crowded(self, peer: str) -> bool:
        """Return whether a frame for `peer` would only wait now, here or on the path; see `Outbox.crowded`."""
        return self._outbox.crowded(peer)

    def frame(self, chunk: Chunk, kind: Kind, part: Part, encoded: Encoded) -> Frame:
        """Return the frame of a chunk that holds the updates of `part`."""
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

    def put(
        self,
        peers: Sequence[str],
        chunk: Chunk,
        kind: Kind,
        frame: Frame,
        data: memoryview,
        sent: Callable[[str], None],
    ) -> None:
        """Queue a chunk's frame for each of `peers`, and call `sent` with the peer after each frame was sent.

        Older rounds go first, then chunks at the front of their slice, then means before partial sums, because a mean
        has less left to do. The position is the part of the slice, not the chunk's number: so slices of unequal length
        advance alike, as their shares assume. By numbers the short slices ended early, and the links of the other trees
        were idle while the rest of a long slice was sent.
        """
        with self._none_queued:
            self._queued += len(peers)
            self.sent_bytes += len(peers) * (self._outbox.head_bytes + len(data))
        priority = (self._number, chunk.front, int(kind is Kind.PARTIAL), chunk.tree)
        self._outbox.put(peers, priority, frame, data, partial(self._sent, sent), self._table)

    def _sent(self, then: Callable[[str], None], peer: str) -> None:
        with self._none_queued:
            self._queued -= 1
            if not self._queued:
                self._none_queued.notify_all()
        then(peer)
