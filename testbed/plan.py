"""A plan: which member sends what to whom in a round. Immutable, with an epoch; pure values.

A plan shares the model over trees. Each tree reduces one contiguous slice of the elements to its root and
broadcasts the mean back; the two directions may take different edges, because links are asymmetric:

        reduce                    broadcast
    a --> b --> root          root --> c --> a
          c ---^                   `-> b

Star, tree, two-level hierarchy and multi-root schemes are all sets of such trees, so one data plane runs them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

PLAN_VERSION = 1

#: Deep trees over slow links want small chunks, fast links want large ones; the policy chooses.
DEFAULT_CHUNK_BYTES = 64 * 1024

#: Elements travel as they are.
PLAIN_CODEC = "fp32"


class PlanError(ValueError):
    """A plan that would lose or double an update, deadlock or leave a member out."""


@dataclass(frozen=True, slots=True)
class Tree:
    """One root's reduce tree and broadcast tree over all members, and its share of the model.

    `reduce[m]` is whom m sends its partial sum to; `broadcast[m]` is whom m gets the mean from. Both hold every
    member but the root. `share` is this root's part of the elements, in (0, 1].
    """

    root: str
    reduce: Mapping[str, str]
    broadcast: Mapping[str, str]
    share: float = 1.0

    def children(self, parent: str, of: Mapping[str, str]) -> tuple[str, ...]:
        """The members whose parent in `of` (this tree's `reduce` or `broadcast`) is `parent`, in name order."""
        return tuple(sorted(child for child, its in of.items() if its == parent))

    def check(self, members: frozenset[str]) -> None:
        """Raise PlanError unless both trees span exactly `members` from the root."""
        if self.root not in members:
            raise PlanError(f"root {self.root!r} is not a member")
        if not 0 < self.share <= 1:
            raise PlanError(f"tree of {self.root}: share {self.share} is not in (0, 1]")
        for kind, parents in (("reduce", self.reduce), ("broadcast", self.broadcast)):
            if frozenset(parents) != members - {self.root}:
                missing = sorted(members - {self.root} - set(parents))
                extra = sorted(set(parents) - (members - {self.root}))
                raise PlanError(f"{kind} tree of {self.root}: leaves out {missing}, has {extra} too many")
            for member in parents:
                _walk_to_root(member, parents, self.root, kind)


def _walk_to_root(member: str, parents: Mapping[str, str], root: str, kind: str) -> None:
    seen: set[str] = set()
    while member != root:
        if member in seen:
            raise PlanError(f"{kind} tree of {root}: a cycle through {member}")
        if member not in parents:
            raise PlanError(f"{kind} tree of {root}: {member} has no way to the root")
        seen.add(member)
        member = parents[member]


@dataclass(frozen=True, slots=True)
class Slice:
    """The elements [start, stop) of the flat tensor that one tree carries; `tree` indexes `Plan.trees`."""

    tree: int
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Plan:
    """The overlay in force from some round on, identified by its epoch.

    `members` is ordered: bit i of a contributors' bitmap is members[i]. `codec` names what tensors are turned into
    on their way where their owner allows it, `link_codecs` another one for an overlay edge, by `a->b`; the sync
    library knows the names. Raises PlanError when made invalid.
    """

    epoch: int
    members: tuple[str, ...]
    trees: tuple[Tree, ...]
    chunk_bytes: int = DEFAULT_CHUNK_BYTES
    policy: str = field(default="")
    codec: str = PLAIN_CODEC
    link_codecs: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.epoch < 0:
            raise PlanError(f"epoch {self.epoch} is negative")
        if len(set(self.members)) != len(self.members) or not self.members:
            raise PlanError("members must be at least one, each named once")
        if not self.trees:
            raise PlanError("a plan needs at least one tree")
        if self.chunk_bytes < 1024 or self.chunk_bytes % 8:
            raise PlanError(f"chunk_bytes {self.chunk_bytes} must be a multiple of 8, at least 1024")
        total = sum(tree.share for tree in self.trees)
        if abs(total - 1) > 1e-6:
            raise PlanError(f"the trees' shares add up to {total}, not 1")
        members = frozenset(self.members)
        for tree in self.trees:
            tree.check(members)
        for link in self.link_codecs:
            source, _, target = link.partition("->")
            if not {source, target} <= members:
                raise PlanError(f"link_codecs names {link!r}, which does not join two members, as `a->b` does")

    def slices(self, elements: int) -> tuple[Slice, ...]:
        """The cut of `elements` over the trees, by share; contiguous, in the trees' order, none lost.

        Boundaries are rounded cumulative shares, so every member computes the same cut.
        """
        cuts, total = [0], 0.0
        for tree in self.trees:
            total += tree.share
            cuts.append(round(total * elements))
        cuts[-1] = elements
        return tuple(Slice(i, cuts[i], cuts[i + 1]) for i in range(len(self.trees)))

    def edges(self) -> Iterator[tuple[str, str, int]]:
        """Each use of a directed overlay edge: (sender, receiver, index of the tree)."""
        for index, tree in enumerate(self.trees):
            for child, parent in tree.reduce.items():
                yield child, parent, index
            for child, parent in tree.broadcast.items():
                yield parent, child, index

    def next_hops(self, member: str) -> frozenset[str]:
        """The members that `member` sends to under this plan."""
        return frozenset(target for source, target, _ in self.edges() if source == member)

    def codec_of(self, source: str, target: str) -> str:
        """The codec's name for partial sums from `source` to `target`."""
        return self.link_codecs.get(f"{source}->{target}", self.codec)

    def shape(self) -> tuple[object, ...]:
        """What the plan does, without its epoch: two plans of one shape need no swap between them."""
        return self.members, self.trees, self.chunk_bytes, self.codec, self.link_codecs

    def with_epoch(self, epoch: int) -> Plan:
        """The same plan under another epoch."""
        return replace(self, epoch=epoch)

    def to_json(self) -> dict[str, Any]:
        """Plain values for JSON, versioned."""
        trees = [
            {**asdict(tree), "reduce": dict(tree.reduce), "broadcast": dict(tree.broadcast)} for tree in self.trees
        ]
        return {
            "version": PLAN_VERSION,
            "epoch": self.epoch,
            "policy": self.policy,
            "members": list(self.members),
            "chunk_bytes": self.chunk_bytes,
            "codec": self.codec,
            "link_codecs": dict(self.link_codecs),
            "trees": trees,
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Plan:
        """The plan that `to_json` wrote; PlanError when the value is not one."""
        try:
            if value.get("version") != PLAN_VERSION:
                raise PlanError(f"plan version {value.get('version')!r} is not {PLAN_VERSION}")
            trees = tuple(
                Tree(tree["root"], dict(tree["reduce"]), dict(tree["broadcast"]), float(tree["share"]))
                for tree in value["trees"]
            )
            return cls(
                epoch=int(value["epoch"]),
                members=tuple(value["members"]),
                trees=trees,
                chunk_bytes=int(value["chunk_bytes"]),
                policy=str(value["policy"]),
                codec=str(value.get("codec", PLAIN_CODEC)),
                link_codecs={str(link): str(codec) for link, codec in value.get("link_codecs", {}).items()},
            )
        except PlanError:
            raise
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise PlanError(f"not a plan: {error!r}") from error

    def dumps(self) -> str:
        """One line of JSON."""
        return json.dumps(self.to_json(), separators=(",", ":"))
