"""How a tensor is cut into chunks: tree by tree, key by key, then `chunk_bytes` at a time. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from testbed.plan import Group, cut
from testbed.sync.errors import FrameError


@dataclass(frozen=True, slots=True)
class Chunk:
    """The elements [start, stop) of the flat tensor; a part `front` of the tree's slice comes before them.

    `key` is the number of the key whose elements they are; None where every chunk is one of its own.
    """

    tree: int
    front: float
    start: int
    stop: int
    key: int | None = None

    def __len__(self) -> int:
        return self.stop - self.start


class Layout:
    """The chunks of `elements` elements of `itemsize` bytes. Trees may have none: fewer elements than trees."""

    def __init__(self, group: Group, chunk_bytes: int, elements: int, itemsize: int) -> None:
        self.elements = elements
        self.itemsize = itemsize
        step = chunk_bytes // itemsize
        self.chunks: list[Chunk] = []
        #: The chunks of each key; keys are numbered through all trees.
        self.keys: list[list[int]] = []
        for whole in group.slices(elements):
            shares = group.trees[whole.tree].keys
            cuts = cut(shares or (1.0,), whole.start, whole.stop)
            for start, stop in pairwise(cuts):
                key = len(self.keys) if shares else None
                first = len(self.chunks)
                for at in range(start, stop, step):
                    front = (at - whole.start) / (whole.stop - whole.start)
                    self.chunks.append(Chunk(whole.tree, front, at, min(at + step, stop), key))
                if shares:
                    self.keys.append(list(range(first, len(self.chunks))))
        #: Chunk numbers, the front of every slice before the rest of any: how a member begins a round.
        self.front_first = sorted(range(len(self.chunks)), key=lambda number: self.chunks[number].front)
        self._numbers = {(chunk.tree, chunk.start): number for number, chunk in enumerate(self.chunks)}

    def find(self, tree: int, offset: int) -> int:
        """The number of the chunk with this tree and element offset; FrameError if there is none."""
        number = self._numbers.get((tree, offset))
        if number is None:
            raise FrameError(f"no chunk of tree {tree} has offset {offset}")
        return number
