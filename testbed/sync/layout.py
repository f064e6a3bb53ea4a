"""How a tensor is cut into chunks under a plan: tree by tree, then `chunk_bytes` at a time. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from testbed.plan import Plan
from testbed.sync.errors import FrameError


@dataclass(frozen=True, slots=True)
class Chunk:
    """The elements [start, stop) of the flat tensor, the `index`-th chunk of the tree's slice."""

    tree: int
    index: int
    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start


class Layout:
    """The chunks of `elements` elements of `itemsize` bytes. Trees may have none: fewer elements than trees."""

    def __init__(self, plan: Plan, elements: int, itemsize: int) -> None:
        self.elements = elements
        self.itemsize = itemsize
        self._step = plan.chunk_bytes // itemsize
        self._slices = plan.slices(elements)
        self._first: list[int] = []
        self.chunks: list[Chunk] = []
        for tree, start, stop in ((s.tree, s.start, s.stop) for s in self._slices):
            self._first.append(len(self.chunks))
            starts = range(start, stop, self._step)
            self.chunks += [Chunk(tree, i, at, min(at + self._step, stop)) for i, at in enumerate(starts)]
        #: Chunk numbers, the front of every slice before the rest of any: how a member begins a round.
        self.front_first = sorted(range(len(self.chunks)), key=lambda number: self.chunks[number].index)

    def find(self, tree: int, offset: int) -> int:
        """The number of the chunk with this tree and element offset; FrameError if there is none."""
        if tree < len(self._slices):
            start, stop = self._slices[tree].start, self._slices[tree].stop
            index, rest = divmod(offset - start, self._step)
            if start <= offset < stop and not rest:
                return self._first[tree] + index
        raise FrameError(f"no chunk of tree {tree} has offset {offset}")
