"""One member's role under a plan, computed once per plan, and the cut of a tensor into chunks. Pure.

A tensor is cut into the slices of trees, then into keys, then into chunks of `chunk_bytes`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

from testbed.plan import Group, Plan, PlanError, Tree, cut
from testbed.sync.codecs import PLAIN, Codec, by_name
from testbed.sync.errors import FrameError
from testbed.sync.transport import RouteTable


@dataclass(frozen=True, slots=True)
class TreeRole:
    """One member's role in one tree."""

    #: This member's bit.
    own: int
    #: The bitmap of this member and all members below it in the reduce tree.
    expected: int
    #: The children in the reduce tree, each with the bitmap of itself and all members below it.
    partials_from: Mapping[str, int]
    #: The parent in the reduce tree; None at the root.
    partials_to: str | None
    #: The parent in the broadcast tree; None at the root.
    mean_from: str | None
    #: The children in the broadcast tree.
    mean_to: tuple[str, ...]
    #: The codec of the link to `partials_to`.
    partial_codec: Codec
    #: The codec of the broadcast tree that takes the fewest bytes. All its links use this one, because the mean's bytes
    #: must be the same at all members.
    mean_codec: Codec


@dataclass(frozen=True, slots=True)
class RoundRole:
    """One member's role in the rounds of a group."""

    #: All members, or the plan's group that this member is in.
    group: Group
    #: The roles in the group's trees, in their order.
    trees: tuple[TreeRole, ...]
    #: The bitmap of the group.
    everybody: int

    @property
    def encodes(self) -> bool:
        """True if this member sends any chunk through a codec, and not as plain float32."""
        return any(role.partial_codec is not PLAIN or role.mean_codec is not PLAIN for role in self.trees)


def role_in(plan: Plan, group: Group, member: str) -> RoundRole:
    """Return the member's role in the rounds of a group of the plan.

    Raises:
        PlanError: A codec of the plan does not exist.
    """
    bits = bits_of(plan)
    return RoundRole(
        group,
        tuple(_tree_role(plan, tree, member) for tree in group.trees),
        sum(bits[name] for name in group.members),
    )


def route_table(plan: Plan, member: str) -> RouteTable:
    """Return the member's routes under the plan, for all its rounds."""
    return RouteTable(plan.epoch, member, plan.next_hops(member), plan.auxiliary)


def bits_of(plan: Plan) -> dict[str, int]:
    """Return each member's bit in the bitmaps of a plan."""
    return {name: 1 << i for i, name in enumerate(plan.members)}


def _tree_role(plan: Plan, tree: Tree, member: str) -> TreeRole:
    bits = bits_of(plan)
    below = _subtrees(tree, {name: bits[name] for name in (tree.root, *tree.reduce)})
    partial_codec = _codec(plan, member, tree.reduce[member]) if member != tree.root else PLAIN
    mean_codecs = [_codec(plan, parent, child) for child, parent in tree.broadcast.items()]
    # The elements of a chunk of float32: no other type takes codecs. Without `link_codecs` all codecs are one.
    elements = plan.values_bytes() // PLAIN.size(1) if plan.link_codecs else 0
    return TreeRole(
        own=bits[member],
        expected=below[member],
        partials_from={child: below[child] for child in tree.children(member, tree.reduce)},
        partials_to=tree.reduce.get(member),
        mean_from=tree.broadcast.get(member),
        mean_to=tree.children(member, tree.broadcast),
        partial_codec=partial_codec,
        mean_codec=min(mean_codecs, key=lambda codec: codec.size(elements), default=PLAIN),
    )


def _codec(plan: Plan, source: str, target: str) -> Codec:
    try:
        return by_name(plan.codec_of(source, target))
    except ValueError as error:
        raise PlanError(f"{source}->{target}: {error}", link=f"{source}->{target}", field="codec") from error


def _subtrees(tree: Tree, bits: Mapping[str, int]) -> dict[str, int]:
    """Return for each member the bitmap of the members whose path to the root passes it, itself included."""
    below = dict(bits)
    for member, bit in bits.items():
        while member != tree.root:
            member = tree.reduce[member]
            below[member] |= bit
    return below


@dataclass(frozen=True, slots=True)
class Chunk:
    """The elements [start, stop) of the flat tensor."""

    #: The number of the chunk's tree.
    tree: int
    #: The part of the tree's slice that comes before the chunk, in [0, 1).
    front: float
    start: int
    stop: int
    #: The number of the key that the chunk belongs to; None in a tree without keys.
    key: int | None = None

    def __len__(self) -> int:
        return self.stop - self.start


class Layout:
    """The chunks of a tensor of `elements` elements of `itemsize` bytes. A tree has no chunk if its slice is empty."""

    def __init__(self, group: Group, chunk_bytes: int, elements: int, itemsize: int) -> None:
        self.elements = elements
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
        #: The chunks' numbers by `front`, the order in which a member adds its own values.
        self.front_first = sorted(range(len(self.chunks)), key=lambda number: self.chunks[number].front)
        self._numbers = {(chunk.tree, chunk.start): number for number, chunk in enumerate(self.chunks)}

    def find(self, tree: int, offset: int) -> int:
        """Return the number of the chunk with this tree and first element.

        Raises:
            FrameError: There is no such chunk.
        """
        number = self._numbers.get((tree, offset))
        if number is None:
            raise FrameError(f"no chunk of tree {tree} has offset {offset}")
        return number
