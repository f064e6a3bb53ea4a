"""Plans: which member sends what to whom in a round. Pure, immutable values with an epoch.

A plan shares the model over trees. Each tree reduces one contiguous slice of the elements to its root and
broadcasts the mean back; the two directions may take different edges, because links are asymmetric:

        reduce                    broadcast
    a --> b --> root          root --> c --> a
          c ---^                   `-> b

Star, tree, two-level hierarchy and multi-root schemes are all sets of such trees, so one data plane runs them.
A plan may also divide its members into groups with trees of their own. Groups reduce among themselves; only each
`period`-th round is among all members. A plan may name auxiliary routes, which carry frames that wait for a busy edge.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from testbed.errors import DetailedError

PLAN_VERSION = 3

#: Small chunks are better for deep trees over slow links, large ones for fast links; the policy chooses.
DEFAULT_CHUNK_BYTES = 64 * 1024

#: The most bytes of float32 values in a chunk that codecs shorten. A round may send the same values without codecs, and
#: a long chunk holds up deep trees. The head of a frame, 90 bytes, is then at most 0.3 % of what codecs leave.
MOST_CODED_BYTES = 1024 * 1024

#: The bytes of the largest block of float32 values that a codec works on. A chunk has whole blocks.
BLOCK_BYTES = 4 * 4096

#: The codec that leaves elements unchanged.
PLAIN_CODEC = "fp32"

#: Codec → its bytes for an element, which has four as float32. `topk:SHARE` takes six bytes for each kept value. The
#: bytes of `sparse` depend on the values: 0.1 if one in a hundred is not zero, in the mean of eight members.
CODEC_BYTES = {
    **{"fp32": 4.0, "fp16": 2.0, "bf16": 2.0, "int8": 1 + 4 / 256},
    **{"bins4": 1 / 2 + 64 / 4096, "bins2": 1 / 4 + 16 / 4096, "sparse": 0.1},
}
TOPK = re.compile(r"topk:(0?\.\d*[1-9]\d*)")
TOPK_BYTES = 6
#: The most bytes of values for that: a place among more than 65,536 elements takes four bytes instead of two.
MOST_TOPK_BYTES = 4 << 16

#: The tolerance for a sum of shares, which must be 1: less than one element of any model that fits in memory.
_SHARES_TOLERANCE = 1e-6


class PlanError(DetailedError, ValueError):
    """A plan that would lose or double an update, deadlock or leave a member out."""


@dataclass(frozen=True, slots=True)
class Tree:
    """One root's reduce tree and broadcast tree over all members, and its share of the model."""

    root: str
    #: Member → the member that it sends its partial sum to. Has every member but the root, as `broadcast` has.
    reduce: Mapping[str, str]
    #: Member → the member that it gets the mean from.
    broadcast: Mapping[str, str]
    #: The root's part of the elements, in (0, 1].
    share: float = 1.0
    #: Consecutive parts of the share, which add up to 1. The mean of an element is broadcast once all elements of its
    #: key are reduced at the root, as in MXNet's parameter server (a key is pulled after all members have pushed it).
    #: Without keys every chunk is a key of its own.
    keys: tuple[float, ...] = ()

    def children(self, parent: str, of: Mapping[str, str]) -> tuple[str, ...]:
        """Return the members whose parent in `of` (the tree's `reduce` or `broadcast`) is `parent`, in name order."""
        return tuple(sorted(child for child, its in of.items() if its == parent))

    def check(self, members: frozenset[str]) -> None:
        """Raise PlanError unless both trees span exactly `members` from the root, and share and keys are in range."""
        if self.root not in members:
            raise PlanError(
                f"the root {self.root!r} is not a member", rule="unknown-member", field="root", given=self.root
            )
        if not 0 < self.share <= 1:
            text = f"tree of {self.root}: the share {self.share} is not in (0, 1]"
            raise PlanError(text, field="share", given=self.share)
        total = sum(self.keys)
        if self.keys and (not all(0 < share <= 1 for share in self.keys) or abs(total - 1) > _SHARES_TOLERANCE):
            shares = f"the shares {list(self.keys)} must each be in (0, 1] and add up to 1, not {total}"
            raise PlanError(f"the keys of the tree of {self.root}: {shares}", field="keys", given=self.keys)
        for kind, parents in (("reduce", self.reduce), ("broadcast", self.broadcast)):
            if frozenset(parents) != members - {self.root}:
                missing = sorted(members - {self.root} - set(parents))
                extra = sorted(set(parents) - (members - {self.root}))
                text = f"{kind} tree of {self.root}: it leaves out {missing} and has {extra} too many"
                raise PlanError(text, rule="span", field=kind)
            arrived = {self.root}
            for member in parents:
                _walk_to_root(member, parents, self.root, kind, arrived)

    def to_json(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {
            "root": self.root,
            "reduce": dict(self.reduce),
            "broadcast": dict(self.broadcast),
            "share": float(self.share),
            "keys": [float(share) for share in self.keys],
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Tree:
        """Return the tree that `to_json` wrote."""
        return cls(
            root=value["root"],
            reduce=dict(value["reduce"]),
            broadcast=dict(value["broadcast"]),
            share=float(value["share"]),
            keys=tuple(float(share) for share in value["keys"]),
        )


def _walk_to_root(member: str, parents: Mapping[str, str], root: str, kind: str, arrived: set[str]) -> None:
    """Raise PlanError unless a way leads to the root. Members with such a way are `arrived`; those of this way join."""
    seen: set[str] = set()
    while member not in arrived:
        if member in seen:
            text = f"{kind} tree of {root}: a cycle goes through {member}"
            raise PlanError(text, rule="cycle", field=kind, member=member)
        if member not in parents:
            text = f"{kind} tree of {root}: {member} has no way to the root"
            raise PlanError(text, rule="no-way-to-root", field=kind, member=member)
        seen.add(member)
        member = parents[member]
    arrived |= seen


def depth(member: str, parents: Mapping[str, str]) -> int:
    """Return the hops from a member to the root of a tree, given each other member's parent."""
    hops = 0
    while member in parents:
        member, hops = parents[member], hops + 1
    return hops


@dataclass(frozen=True, slots=True)
class Slice:
    """The elements [start, stop) of the flat tensor that one tree carries."""

    #: The tree's index in its group.
    tree: int
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Group:
    """Members that reduce among themselves, and the trees over which they do; each tree spans exactly these members.

    All members of a plan and its trees are a group, too.
    """

    members: tuple[str, ...]
    trees: tuple[Tree, ...]

    def check(self) -> None:
        """Raise PlanError unless the trees span the members and share the model."""
        if len(set(self.members)) != len(self.members) or not self.members:
            text = "a group needs one member or more, each named once"
            raise PlanError(text, field="members", given=self.members)
        if not self.trees:
            raise PlanError("a plan needs one tree or more, and so does each of its groups", field="trees")
        total = sum(tree.share for tree in self.trees)
        if abs(total - 1) > _SHARES_TOLERANCE:
            raise PlanError(f"the trees' shares add up to {total}, not 1", field="share", given=total)
        for tree in self.trees:
            tree.check(frozenset(self.members))

    def slices(self, elements: int) -> tuple[Slice, ...]:
        """Return the slices of `elements` over the trees by their shares: contiguous and in the trees' order."""
        cuts = cut((tree.share for tree in self.trees), 0, elements)
        return tuple(Slice(i, cuts[i], cuts[i + 1]) for i in range(len(self.trees)))

    def edges(self) -> Iterator[tuple[str, str, int]]:
        """Yield each use of a directed overlay edge: (sender, receiver, index of the tree)."""
        for index, tree in enumerate(self.trees):
            for child, parent in tree.reduce.items():
                yield child, parent, index
            for child, parent in tree.broadcast.items():
                yield parent, child, index


def cut(shares: Iterable[float], start: int, stop: int) -> list[int]:
    """Return the bounds at which `shares`, which add up to 1 or nearly so, cut [start, stop), both ends included.

    The cuts are rounded cumulative shares, none beyond `stop`, so every member computes the same.
    """
    cuts, total = [start], 0.0
    for share in shares:
        total += share
        cuts.append(min(start + round(total * (stop - start)), stop))
    cuts[-1] = stop
    return cuts


@dataclass(frozen=True, slots=True)
class Route:
    """An auxiliary route (NetStorm, arXiv 2404.11352): frames go from `source` to `target` over the members of `via`.

    The frames carry their route, and the members of `via` only forward them.
    """

    source: str
    target: str
    via: tuple[str, ...]

    def check(self, members: frozenset[str]) -> None:
        """Raise PlanError unless the route leads over one or more members between its ends, each once."""
        hops = (self.source, *self.via, self.target)
        if not self.via:
            text = f"the auxiliary route {self} has no inner member, so it is the edge itself"
            raise PlanError(text, rule="no-inner-member", field="auxiliary")
        if strangers := sorted(set(hops) - members):
            text = f"{strangers} in the auxiliary route {self} are not members"
            raise PlanError(text, rule="unknown-member", field="auxiliary", given=strangers)
        if len(set(hops)) != len(hops):
            text = f"the auxiliary route {self} passes a member twice"
            raise PlanError(text, rule="member-twice", field="auxiliary")

    def __str__(self) -> str:
        return "->".join((self.source, *self.via, self.target))


def codec_bytes(codec: str) -> float:
    """Return a codec's bytes for an element of the model, at most those of fp32. PlanError: there is no such codec."""
    if kept := TOPK.fullmatch(codec):
        return min(TOPK_BYTES * float(kept[1]), CODEC_BYTES[PLAIN_CODEC])  # members send longer chunks plainly
    if codec not in CODEC_BYTES:
        text = f"there is no codec {codec!r}; write instead: {', '.join(CODEC_BYTES)} or topk:0.01"
        raise PlanError(text, field="codec", given=codec)
    return CODEC_BYTES[codec]


def bytes_through(codec: str, model_bytes: int, through: str) -> int:
    """Convert a member's bytes in a round, `model_bytes` as the codec `through` encodes them, to those of `codec`.

    Raises:
        PlanError: There is no such codec.
    """
    return max(1, round(model_bytes * codec_bytes(codec) / codec_bytes(through)))


@dataclass(frozen=True, slots=True)
class TrainingChoice:
    """The scheme by which members train, with its options as plain values of JSON."""

    scheme: str
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def local_steps(self) -> int:
        """The number of local steps in a round."""
        return int(self.options.get("every", 1))

    def __str__(self) -> str:
        return f"{self.scheme} every {self.local_steps} steps" if self.local_steps > 1 else self.scheme


#: The belief about a factor before a run: the mean and the standard deviation of the factor's logarithm.
Prior = tuple[float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemeTraits:
    """The properties of a scheme by which the controller chooses schemes live (`testbed.planning.conductor`)."""

    #: The candidates for the number of local steps in a round.
    steps: tuple[int, ...]
    #: γ, the worth of a step relative to a step of flat all-reduce, apart from horizon and codec; None for flat
    #: all-reduce itself.
    worth: Prior | None = None
    #: γ where members step by an optimizer that normalizes gradients; None if that makes no difference.
    normalized: Prior | None = None
    #: The codec that the scheme is made for, whose effect γ includes; None if the scheme works with any codec.
    codec: str | None = None
    #: The only optimizer with which the scheme is a candidate; None for any.
    optimizer: str | None = None
    #: The scheme's options under the controller, beside the local steps. The controller assumes that each round
    #: exchanges all local steps before it, so options that would add further rounds are switched off.
    options: Mapping[str, Any] = field(default_factory=dict, hash=False)
    #: The values in a round as a multiple of the model's.
    round_share: float = 1.0
    #: Whether a round sets parameters to the members' plain mean. Only then does merging show the horizon: an outer
    #: optimizer moves by more than the mean change.
    plain_mean: bool = False


@dataclass(frozen=True, slots=True)
class Plan:
    """The overlay in force from some round on.

    Raises:
        PlanError: The plan would lose or double an update, deadlock, or leave a member out.
    """

    #: The plan's number, which identifies it.
    epoch: int
    #: The members in the order of a contributors' bitmap: bit i is members[i].
    members: tuple[str, ...]
    #: The trees over all members.
    trees: tuple[Tree, ...]
    #: The most bytes of a chunk as it is sent; see `values_bytes`.
    chunk_bytes: int = DEFAULT_CHUNK_BYTES
    #: The policy that made the plan.
    policy: str = ""
    #: The codec of tensors that may be sent compressed; the sync library knows the names.
    codec: str = PLAIN_CODEC
    #: Overlay edge `a->b` → its codec, instead of `codec`.
    link_codecs: Mapping[str, str] = field(default_factory=dict)
    #: Auxiliary routes in the order of preference. Routes of one pair have no inner member in common.
    auxiliary: tuple[Route, ...] = ()
    #: A division of the members. With groups, only rounds whose number is a multiple of `period` go over `trees`; in
    #: other rounds each group reduces among itself.
    groups: tuple[Group, ...] = ()
    period: int = 1
    #: Member → its local steps in a round, where the plan gives them.
    steps: Mapping[str, int] = field(default_factory=dict)
    #: How members train, where that may change during training (the scheme `auto`): takes force with the trees.
    training: TrainingChoice | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.epoch < 2**32:
            text = f"the epoch {self.epoch} must be from 0 to 2^32 - 1, the range of epochs in frames"
            raise PlanError(text, field="epoch", given=self.epoch)
        if self.chunk_bytes < 1024 or self.chunk_bytes % 8:
            text = f"chunk_bytes {self.chunk_bytes} must be a multiple of 8, at least 1024"
            raise PlanError(text, field="chunk_bytes", given=self.chunk_bytes)
        self.whole.check()
        self._check_groups()
        self._check_auxiliary()
        members = frozenset(self.members)
        for link in self.link_codecs:
            source, _, target = link.partition("->")
            if not {source, target} <= members:
                text = f"link_codecs has {link!r}, which does not join two members as `a->b` does"
                raise PlanError(text, field="link_codecs", link=link)
        for member, count in self.steps.items():
            if member not in members or count < 1:
                text = f"steps has {count} for {member!r}; write 1 or more for members alone"
                raise PlanError(text, field="steps", member=member, given=count)

    def _check_groups(self) -> None:
        if self.period < 1 or (self.period > 1) != bool(self.groups):
            text = f"the period is {self.period} with {len(self.groups)} groups; write 1 without groups, 2 or more with"
            raise PlanError(text, field="period", given=self.period)
        for group in self.groups:
            group.check()
        parted = [member for group in self.groups for member in group.members]
        if self.groups and sorted(parted) != sorted(self.members):
            raise PlanError("the groups must hold every member, each in one of them", field="groups")

    def _check_auxiliary(self) -> None:
        members = frozenset(self.members)
        taken: dict[tuple[str, str, str], Route] = {}
        for route in self.auxiliary:
            route.check(members)
            for inner in route.via:
                if other := taken.get((route.source, route.target, inner)):
                    text = f"the auxiliary routes {other} and {route} have an inner member in common"
                    raise PlanError(text, rule="shared-inner-member", field="auxiliary")
                taken[route.source, route.target, inner] = route

    @property
    def whole(self) -> Group:
        """The group of all members, with the trees over them."""
        return Group(self.members, self.trees)

    def among_all(self, round_number: int) -> bool:
        """Return whether a round is among all members."""
        return round_number % self.period == 0

    def check_codecs(self) -> None:
        """Raise PlanError unless there is each codec that the plan names."""
        for codec in (self.codec, *self.link_codecs.values()):
            codec_bytes(codec)

    def groups_in(self, round_number: int) -> tuple[Group, ...]:
        """Return the groups that reduce in a round, each by itself: every member is in one of them."""
        return (self.whole,) if self.among_all(round_number) else self.groups

    def edges(self) -> Iterator[tuple[str, str, int]]:
        """Yield each use of an edge in a round among all: (sender, receiver, index of the tree)."""
        return self.whole.edges()

    def next_hops(self, member: str) -> frozenset[str]:
        """Return the members to which `member` sends sums and means in any round of this plan."""
        parties = (self.whole, *self.groups)
        return frozenset(target for party in parties for source, target, _ in party.edges() if source == member)

    def neighbours(self, member: str) -> frozenset[str]:
        """Return the members that send to `member`, or to which it sends, in a round among all."""
        pairs = [{source, target} for source, target, _ in self.edges()]
        return frozenset().union(*(pair - {member} for pair in pairs if member in pair))

    def codec_of(self, source: str, target: str) -> str:
        """Return the name of the codec for partial sums from `source` to `target`."""
        return self.link_codecs.get(f"{source}->{target}", self.codec)

    def values_bytes(self) -> int:
        """Return the bytes of a chunk's values: `chunk_bytes`, or as many as the weakest codec sends in them."""
        codecs = {self.codec}
        if self.link_codecs:
            edges = (edge for party in (self.whole, *self.groups) for edge in party.edges())
            codecs = {self.codec_of(source, target) for source, target, _ in edges}
        share = max(map(codec_bytes, codecs), default=CODEC_BYTES[PLAIN_CODEC]) / CODEC_BYTES[PLAIN_CODEC]
        most = MOST_TOPK_BYTES if any(map(TOPK.fullmatch, codecs)) else MOST_CODED_BYTES
        whole = int(min(self.chunk_bytes / share, most)) // BLOCK_BYTES * BLOCK_BYTES
        return max(whole, self.chunk_bytes)

    def shape(self) -> Plan:
        """Return the plan without its epoch and policy: two plans of one shape need no swap between them."""
        return replace(self, epoch=0, policy="")

    def with_epoch(self, epoch: int) -> Plan:
        """Return the plan under another epoch."""
        return replace(self, epoch=epoch)

    def to_json(self) -> dict[str, Any]:
        """Return plain values for JSON, with the version. Scalars of NumPy become numbers of Python."""
        return {
            "version": PLAN_VERSION,
            "epoch": int(self.epoch),
            "policy": self.policy,
            "members": list(self.members),
            "chunk_bytes": int(self.chunk_bytes),
            "codec": self.codec,
            "link_codecs": dict(self.link_codecs),
            "trees": [tree.to_json() for tree in self.trees],
            "auxiliary": [[route.source, *route.via, route.target] for route in self.auxiliary],
            "groups": [
                {"members": list(group.members), "trees": [tree.to_json() for tree in group.trees]}
                for group in self.groups
            ],
            "period": int(self.period),
            "steps": {member: int(count) for member, count in self.steps.items()},
            **({} if self.training is None else {"training": _training_json(self.training)}),
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Plan:
        """Return the plan that `to_json` wrote, in this or an earlier version. PlanError where it is not a plan."""
        try:
            value = _in_newest_version(value)
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
            raise PlanError(
                f"the value is not a plan: it lacks {error}", rule="not-a-plan", field=str(error.args[0])
            ) from error
        except (TypeError, AttributeError, ValueError, OverflowError) as error:
            raise PlanError(f"the value is not a plan: {error!r}", rule="not-a-plan") from error

    def dumps(self) -> str:
        """Return one line of JSON."""
        return json.dumps(self.to_json(), separators=(",", ":"))


def _in_newest_version(value: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a plan's value with the fields of the newest version, whichever version wrote it.

    Plans of version 1 have neither keys, auxiliary routes nor groups, and the first ones no codecs. Plans of version 2
    have no local steps.
    """
    version = value.get("version")
    if version not in range(1, PLAN_VERSION + 1):
        text = f"the plan's version is {version!r}, and this release reads versions 1 to {PLAN_VERSION}"
        remedy = "make the plan again with `testbed plan`, or read it with the release that wrote it"
        raise PlanError(f"{text}; {remedy}", field="version", given=version)
    if version == 1:
        trees = [{**tree, "keys": ()} for tree in value["trees"]]
        codecs = {"codec": PLAIN_CODEC, "link_codecs": {}}
        value = {**codecs, **value, "trees": trees, "auxiliary": (), "groups": (), "period": 1}
    return value if version == PLAN_VERSION else {**value, "steps": {}}


def _trees(values: Iterable[Mapping[str, Any]]) -> tuple[Tree, ...]:
    return tuple(Tree.from_json(value) for value in values)


def _training_json(training: TrainingChoice) -> dict[str, Any]:
    return {"scheme": training.scheme, "options": dict(training.options)}


def _training(value: Mapping[str, Any] | None) -> TrainingChoice | None:
    return None if value is None else TrainingChoice(str(value["scheme"]), dict(value["options"]))


def _route(way: Iterable[Any]) -> Route:
    source, *via, target = (str(member) for member in way)
    return Route(source, target, tuple(via))
