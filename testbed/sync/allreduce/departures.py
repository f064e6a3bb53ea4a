"""What one round has put into the queues for other members, until it has left."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from testbed.sync.allreduce.chunk import Part
from testbed.sync.allreduce.header import ChunkHeader, ChunkHeaderFormat, Kind
from testbed.sync.allreduce.layout import Chunk
from testbed.sync.allreduce.payload import Encoded
from testbed.sync.transport import Frame, Outbox


class Departures:
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
