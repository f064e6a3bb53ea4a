"""What a plan asks of one member, worked out once per plan. Pure.

How a tensor is cut into chunks: tree by tree, key by key, then `chunk_bytes` at a time. Pure.
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
    """One member's role in one tree.

    `partials_from` maps each child of the reduce tree to the bitmap of the members below it, itself included;
    `expected` is the union of those and this member. `partials_to` and `mean_from` are None at the root.

    `partial_codec` is that of the link to `partials_to`. The mean's bytes must be the same all the way down, so
    `mean_codec` is the one of the whole broadcast tree that takes the fewest.
    """

    own: int
    expected: int
    partials_from: Mapping[str, int]
    partials_to: str | None
    mean_from: str | None
    mean_to: tuple[str, ...]
    partial_codec: Codec
    mean_codec: Codec


@dataclass(frozen=True, slots=True)
class RoundRole:
    """One member's role in the rounds of `group`, which is all members or the plan's group that it is in.

    `trees` are its roles in the group's trees, in their order; `everybody` is the bitmap of the group.
    """

    group: Group
    trees: tuple[TreeRole, ...]
    everybody: int

    @property
    def encodes(self) -> bool:
        """Whether this member has chunks to encode."""
        return any(role.partial_codec is not PLAIN or role.mean_codec is not PLAIN for role in self.trees)


def role_in(plan: Plan, group: Group, member: str) -> RoundRole:
    """The member's role in the rounds of a group of the plan, or of all. PlanError when a codec does not exist."""
    bits = bits_of(plan)
    return RoundRole(
        group,
        tuple(_tree_role(plan, tree, member) for tree in group.trees),
        sum(bits[name] for name in group.members),
    )


def route_table(plan: Plan, member: str) -> RouteTable:
    """Whom the member sends to under the plan, in any of its rounds."""
    return RouteTable(plan.epoch, member, plan.next_hops(member), plan.auxiliary)


def bits_of(plan: Plan) -> dict[str, int]:
    """Each member's bit in the bitmaps of a plan."""
    return {name: 1 << i for i, name in enumerate(plan.members)}


def _tree_role(plan: Plan, tree: Tree, member: str) -> TreeRole:
    bits = bits_of(plan)
    below = _subtrees(tree, {name: bits[name] for name in (tree.root, *tree.reduce)})
    return TreeRole(
        own=bits[member],
        expected=below[member],
        partials_from={child: below[child] for child in tree.children(member, tree.reduce)},
        partials_to=tree.reduce.get(member),
        mean_from=tree.broadcast.get(member),
        mean_to=tree.children(member, tree.broadcast),
        partial_codec=_codec(plan, member, tree.reduce[member]) if member != tree.root else PLAIN,
        mean_codec=min(
            (_codec(plan, parent, child) for child, parent in tree.broadcast.items()),
            key=lambda codec: codec.size(plan.chunk_bytes),
            default=PLAIN,
        ),
    )


def _codec(plan: Plan, source: str, target: str) -> Codec:
    try:
        return by_name(plan.codec_of(source, target))
    except ValueError as error:
        raise PlanError(f"{source}->{target}: {error}", link=f"{source}->{target}", field="codec") from error


def _subtrees(tree: Tree, bits: Mapping[str, int]) -> dict[str, int]:
    """For each member, the bitmap of all whose way to the root passes it."""
    below = dict(bits)
    for member, bit in bits.items():
        while member != tree.root:
            member = tree.reduce[member]
            below[member] |= bit
    return below


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
