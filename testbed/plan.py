"""A plan: which member sends what to whom in a round. Immutable, with an epoch; pure values.

A plan shares the model over trees. Each tree reduces one contiguous slice of the elements to its root and
broadcasts the mean back; the two directions may take different edges, because links are asymmetric:

        reduce                    broadcast
    a --> b --> root          root --> c --> a
          c ---^                   `-> b

Star, tree, two-level hierarchy and multi-root schemes are all sets of such trees, so one data plane runs them.
A plan may also part its members into groups, each with trees of its own, that reduce among themselves in all rounds
but every `period`-th, which is among all; and name auxiliary routes, which take over what waits for a busy edge.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import Any

from testbed.errors import DetailedError

PLAN_VERSION = 3

#: Deep trees over slow links want small chunks, fast links want large ones; the policy chooses.
DEFAULT_CHUNK_BYTES = 64 * 1024

#: Elements travel as they are.
PLAIN_CODEC = "fp32"

#: Bytes that codecs make of a float32's four. `topk:SHARE` takes six for each value that it keeps, `sparse` what the
#: values need: as much where one in a hundred is not zero, in the mean of eight members.
CODEC_BYTES = {
    **{"fp32": 4.0, "fp16": 2.0, "bf16": 2.0, "int8": 1 + 4 / 256},
    **{"bins4": 1 / 2 + 64 / 4096, "bins2": 1 / 4 + 16 / 4096, "sparse": 0.1},
}
TOPK = re.compile(r"topk:(0?\.\d+)")
TOPK_BYTES = 6

#: Shares are sums of floats; what they may be off 1 by is less than one element of any model that fits in memory.
_SHARES_TOLERANCE = 1e-6


class PlanError(DetailedError, ValueError):
    """A plan that would lose or double an update, deadlock or leave a member out."""


@dataclass(frozen=True, slots=True)
class Tree:
    """One root's reduce tree and broadcast tree over all members, and its share of the model.

    `reduce[m]` is whom m sends its partial sum to; `broadcast[m]` is whom m gets the mean from. Both hold every
    member but the root. `share` is this root's part of the elements, in (0, 1].

    `keys` are parts of that share, one after the other, that add up to 1: the mean of an element is broadcast once
    all elements of its key are reduced at the root, as MXNet's parameter server does (a key is pulled after all have
    pushed it). Without keys every chunk is one of its own.
    """

    root: str
    reduce: Mapping[str, str]
    broadcast: Mapping[str, str]
    share: float = 1.0
    keys: tuple[float, ...] = ()

    def children(self, parent: str, of: Mapping[str, str]) -> tuple[str, ...]:
        """The members whose parent in `of` (this tree's `reduce` or `broadcast`) is `parent`, in name order."""
        return tuple(sorted(child for child, its in of.items() if its == parent))

    def check(self, members: frozenset[str]) -> None:
        """Raise PlanError unless both trees span exactly `members` from the root."""
        if self.root not in members:
            raise PlanError(f"root {self.root!r} is not a member", rule="unknown-member", field="root", given=self.root)
        if not 0 < self.share <= 1:
            raise PlanError(
                f"tree of {self.root}: share {self.share} is not in (0, 1]", field="share", given=self.share
            )
        if self.keys:
            _check_shares(self.keys, f"the keys of the tree of {self.root}", "keys")
        for kind, parents in (("reduce", self.reduce), ("broadcast", self.broadcast)):
            if frozenset(parents) != members - {self.root}:
                missing = sorted(members - {self.root} - set(parents))
                extra = sorted(set(parents) - (members - {self.root}))
                raise PlanError(
                    f"{kind} tree of {self.root}: leaves out {missing}, has {extra} too many", rule="span", field=kind
                )
            for member in parents:
                _walk_to_root(member, parents, self.root, kind)

    def to_json(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "root": self.root,
            "reduce": dict(self.reduce),
            "broadcast": dict(self.broadcast),
            "share": self.share,
            "keys": list(self.keys),
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Tree:
        """The tree that `to_json` wrote."""
        return cls(
            root=value["root"],
            reduce=dict(value["reduce"]),
            broadcast=dict(value["broadcast"]),
            share=float(value["share"]),
            keys=tuple(float(share) for share in value["keys"]),
        )


def _walk_to_root(member: str, parents: Mapping[str, str], root: str, kind: str) -> None:
    seen: set[str] = set()
    while member != root:
        if member in seen:
            raise PlanError(f"{kind} tree of {root}: a cycle through {member}", rule="cycle", field=kind, member=member)
        if member not in parents:
            raise PlanError(
                f"{kind} tree of {root}: {member} has no way to the root",
                rule="no-way-to-root",
                field=kind,
                member=member,
            )
        seen.add(member)
        member = parents[member]


def _check_shares(shares: Iterable[float], what: str, field: str) -> None:
    shares = tuple(shares)
    if not all(0 < share <= 1 for share in shares) or abs(sum(shares) - 1) > _SHARES_TOLERANCE:
        raise PlanError(
            f"{what}: shares {list(shares)} must each be in (0, 1] and add up to 1, not {sum(shares)}",
            field=field,
            given=shares,
        )


@dataclass(frozen=True, slots=True)
class Slice:
    """The elements [start, stop) of the flat tensor that one tree carries; `tree` indexes the trees it was cut for."""

    tree: int
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Group:
    """Members that reduce among themselves, and the trees that they do it over: each spans exactly them.

    A plan as a whole is the group of all its members.
    """

    members: tuple[str, ...]
    trees: tuple[Tree, ...]

    def check(self) -> None:
        """Raise PlanError unless the trees span the members and share the model."""
        if len(set(self.members)) != len(self.members) or not self.members:
            raise PlanError("members must be at least one, each named once", field="members", given=self.members)
        if not self.trees:
            raise PlanError("a plan needs at least one tree, and so does each of its groups", field="trees")
        total = sum(tree.share for tree in self.trees)
        if abs(total - 1) > _SHARES_TOLERANCE:
            raise PlanError(f"the trees' shares add up to {total}, not 1", field="share", given=total)
        for tree in self.trees:
            tree.check(frozenset(self.members))

    def slices(self, elements: int) -> tuple[Slice, ...]:
        """The cut of `elements` over the trees, by share; contiguous, in the trees' order, none lost."""
        cuts = cut((tree.share for tree in self.trees), 0, elements)
        return tuple(Slice(i, cuts[i], cuts[i + 1]) for i in range(len(self.trees)))

    def edges(self) -> Iterator[tuple[str, str, int]]:
        """Each use of a directed overlay edge: (sender, receiver, index of the tree)."""
        for index, tree in enumerate(self.trees):
            for child, parent in tree.reduce.items():
                yield child, parent, index
            for child, parent in tree.broadcast.items():
                yield parent, child, index


def cut(shares: Iterable[float], start: int, stop: int) -> list[int]:
    """Where [start, stop) is cut by shares that add up to 1, both ends included.

    Cuts are rounded cumulative shares, so every member computes the same ones.
    """
    cuts, total = [start], 0.0
    for share in shares:
        total += share
        cuts.append(start + round(total * (stop - start)))
    cuts[-1] = stop
    return cuts


@dataclass(frozen=True, slots=True)
class Route:
    """An auxiliary route (NetStorm, arXiv 2404.11352): frames from `source` to `target` over `via`, one by one.

    They name their way themselves, and the members of `via` only forward them.
    """

    source: str
    target: str
    via: tuple[str, ...]

    def check(self, members: frozenset[str]) -> None:
        """Raise PlanError unless it leads over members other than its ends, each once."""
        way = (self.source, *self.via, self.target)
        if not self.via:
            raise PlanError(
                f"auxiliary route {self}: has no inner member, so it is the edge itself",
                rule="no-inner-member",
                field="auxiliary",
            )
        if strangers := sorted(set(way) - members):
            raise PlanError(
                f"auxiliary route {self}: {strangers} are not members",
                rule="unknown-member",
                field="auxiliary",
                given=strangers,
            )
        if len(set(way)) != len(way):
            raise PlanError(f"auxiliary route {self}: passes a member twice", rule="member-twice", field="auxiliary")

    def __str__(self) -> str:
        return "->".join((self.source, *self.via, self.target))


def codec_bytes(codec: str) -> float:
    """What a number of the model takes on its way through a codec; PlanError when there is none of the name."""
    if kept := TOPK.fullmatch(codec):
        return TOPK_BYTES * float(kept[1])
    if codec not in CODEC_BYTES:
        raise PlanError(
            f"no such codec: {codec!r}; write instead: {', '.join(CODEC_BYTES)} or topk:0.01",
            field="codec",
            given=codec,
        )
    return CODEC_BYTES[codec]


@dataclass(frozen=True, slots=True)
class TrainingChoice:
    """What members do between two rounds: a `scheme` with its `options`, plain values as JSON has them."""

    scheme: str
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def local_steps(self) -> int:
        """Steps to a round."""
        return int(self.options.get("every", 1))

    def __str__(self) -> str:
        return f"{self.scheme} every {self.local_steps} steps" if self.local_steps > 1 else self.scheme


@dataclass(frozen=True, slots=True)
class Plan:
    """The overlay in force from some round on, identified by its epoch. Raises PlanError when made invalid.

    `members` is ordered: bit i of a contributors' bitmap is members[i]; `trees` span them all. With `groups`, which
    part the members, only the rounds whose number is a multiple of `period` go over `trees`; in the others each group
    reduces among itself. `auxiliary` routes of one pair have no inner member in common, and come in the order of
    preference. `codec` names what tensors are turned into on their way where their owner allows it, `link_codecs`
    another one for an overlay edge, by `a->b`; the sync library knows the names. `steps` are the local steps that
    members take to a round, where the plan says so. `training` is how members train, where that may change in the
    midst (the scheme `auto`): it takes force with the trees.
    """

    epoch: int
    members: tuple[str, ...]
    trees: tuple[Tree, ...]
    chunk_bytes: int = DEFAULT_CHUNK_BYTES
    policy: str = ""
    codec: str = PLAIN_CODEC
    link_codecs: Mapping[str, str] = field(default_factory=dict)
    auxiliary: tuple[Route, ...] = ()
    groups: tuple[Group, ...] = ()
    period: int = 1
    steps: Mapping[str, int] = field(default_factory=dict)
    training: TrainingChoice | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.epoch < 2**32:
            raise PlanError(
                f"epoch {self.epoch} is not a number from 0 to 2^32 - 1, which frames have room for",
                field="epoch",
                given=self.epoch,
            )
        if self.chunk_bytes < 1024 or self.chunk_bytes % 8:
            raise PlanError(
                f"chunk_bytes {self.chunk_bytes} must be a multiple of 8, at least 1024",
                field="chunk_bytes",
                given=self.chunk_bytes,
            )
        self.whole.check()
        self._check_groups()
        self._check_auxiliary()
        members = frozenset(self.members)
        for link in self.link_codecs:
            source, _, target = link.partition("->")
            if not {source, target} <= members:
                raise PlanError(
                    f"link_codecs names {link!r}, which does not join two members, as `a->b` does",
                    field="link_codecs",
                    link=link,
                )
        for member, count in self.steps.items():
            if member not in members or count < 1:
                raise PlanError(
                    f"steps: {count} of {member!r}; they must be members', and at least 1 each",
                    field="steps",
                    member=member,
                    given=count,
                )

    def _check_groups(self) -> None:
        if self.period < 1 or (self.period > 1) != bool(self.groups):
            raise PlanError(
                f"period {self.period} with {len(self.groups)} groups: without groups it is 1, every round is among "
                "all; with groups at least 2, else they never reduce among themselves",
                field="period",
                given=self.period,
            )
        for group in self.groups:
            group.check()
        parted = [member for group in self.groups for member in group.members]
        if self.groups and sorted(parted) != sorted(self.members):
            raise PlanError("the groups must hold every member, each in one of them", field="groups")

    def _check_auxiliary(self) -> None:
        members = frozenset(self.members)
        for route in self.auxiliary:
            route.check(members)
        for one, other in combinations(self.auxiliary, 2):
            if (one.source, one.target) == (other.source, other.target) and set(one.via) & set(other.via):
                raise PlanError(
                    f"auxiliary routes {one} and {other} have an inner member in common",
                    rule="shared-inner-member",
                    field="auxiliary",
                )

    @property
    def whole(self) -> Group:
        """All members and the trees over them."""
        return Group(self.members, self.trees)

    def among_all(self, round_number: int) -> bool:
        """Whether all members take part in a round together."""
        return round_number % self.period == 0

    def group_of(self, member: str, round_number: int) -> Group:
        """Those whom `member` reduces with in a round, itself among them, and the trees for it."""
        if self.among_all(round_number):
            return self.whole
        return next(group for group in self.groups if member in group.members)

    def slices(self, elements: int) -> tuple[Slice, ...]:
        """The cut of `elements` over the trees that span all members."""
        return self.whole.slices(elements)

    def edges(self) -> Iterator[tuple[str, str, int]]:
        """Each use of an edge in a round among all: (sender, receiver, index of the tree)."""
        return self.whole.edges()

    def next_hops(self, member: str) -> frozenset[str]:
        """The members that `member` sends sums and means to under this plan, in any of its rounds."""
        parties = (self.whole, *self.groups)
        return frozenset(target for party in parties for source, target, _ in party.edges() if source == member)

    def codec_of(self, source: str, target: str) -> str:
        """The codec's name for partial sums from `source` to `target`."""
        return self.link_codecs.get(f"{source}->{target}", self.codec)

    def shape(self) -> Plan:
        """What the plan does, without its epoch and its policy: two plans of one shape need no swap between them."""
        return replace(self, epoch=0, policy="")

    def with_epoch(self, epoch: int) -> Plan:
        """The same plan under another epoch."""
        return replace(self, epoch=epoch)

    def to_json(self) -> dict[str, Any]:
        """Plain values for JSON, versioned."""
        return {
            "version": PLAN_VERSION,
            "epoch": self.epoch,
            "policy": self.policy,
            "members": list(self.members),
            "chunk_bytes": self.chunk_bytes,
            "codec": self.codec,
            "link_codecs": dict(self.link_codecs),
            "trees": [tree.to_json() for tree in self.trees],
            "auxiliary": [[route.source, *route.via, route.target] for route in self.auxiliary],
            "groups": [
                {"members": list(group.members), "trees": [tree.to_json() for tree in group.trees]}
                for group in self.groups
            ],
            "period": self.period,
            "steps": dict(self.steps),
            **({} if self.training is None else {"training": _training_json(self.training)}),
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Plan:
        """The plan that `to_json` wrote; PlanError when the value is not one."""
        try:
            if value.get("version") != PLAN_VERSION:
                raise PlanError(
                    f"plan version {value.get('version')!r} is not {PLAN_VERSION}: "
                    "plan anew, or read it with the release that wrote it",
                    field="version",
                    given=value.get("version"),
                )
            return cls(
                epoch=int(value["epoch"]),
                members=tuple(value["members"]),
                trees=_trees(value["trees"]),
                chunk_bytes=int(value["chunk_bytes"]),
                policy=str(value["policy"]),
                codec=str(value["codec"]),
                link_codecs={str(link): str(codec) for link, codec in value["link_codecs"].items()},
                auxiliary=tuple(_route(way) for way in value["auxiliary"]),
                groups=tuple(Group(tuple(group["members"]), _trees(group["trees"])) for group in value["groups"]),
                period=int(value["period"]),
                steps={str(member): int(count) for member, count in value["steps"].items()},
                training=_training(value.get("training")),
            )
        except PlanError:
            raise
        except KeyError as error:
            raise PlanError(f"not a plan: it lacks {error}", rule="not-a-plan", field=str(error.args[0])) from error
        except (TypeError, AttributeError, ValueError, OverflowError) as error:
            raise PlanError(f"not a plan: {error!r}", rule="not-a-plan") from error

    def dumps(self) -> str:
        """One line of JSON."""
        return json.dumps(self.to_json(), separators=(",", ":"))


def _trees(values: Iterable[Mapping[str, Any]]) -> tuple[Tree, ...]:
    return tuple(Tree.from_json(value) for value in values)


def _training_json(training: TrainingChoice) -> dict[str, Any]:
    return {"scheme": training.scheme, "options": dict(training.options)}


def _training(value: Mapping[str, Any] | None) -> TrainingChoice | None:
    return None if value is None else TrainingChoice(str(value["scheme"]), dict(value["options"]))


def _route(way: Iterable[Any]) -> Route:
    source, *via, target = (str(member) for member in way)
    return Route(source, target, tuple(via))
