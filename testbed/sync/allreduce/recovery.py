"""The recovery of a round in which a member was lost: the rule of atomic rounds.

A slice that is final at some survivor stays as it is, and the others fetch it, so all survivors end up with the values
that some of them have used already. The survivors reduce all other slices again, each slice with its own denominator.
All survivors compute this from the same holdings, so they agree without another message.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from math import inf

import torch
from msgspec import structs

from testbed.plan import Plan
from testbed.protocol import Holding, MeanSlice
from testbed.sync.allreduce import spans
from testbed.sync.allreduce.fetch import FetchRequest, MeansNote, Wanted, fetch_all
from testbed.sync.allreduce.group import AllReduceGroup, Roster
from testbed.sync.allreduce.receiver import Loss
from testbed.sync.allreduce.reduction import joined
from testbed.sync.allreduce.round import RoundResult, Tally
from testbed.sync.allreduce.spans import Span, Spans
from testbed.sync.codecs import Residual
from testbed.sync.errors import SyncError
from testbed.sync.executor import start as start_thread

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RecoveryOrders:
    """A survivor's part in the recovery of a round."""

    #: The first round that is not over at every survivor.
    round: int
    #: True if no survivor holds any mean of the round: all survivors reduce it from the start.
    restart: bool
    #: The elements that no survivor holds: all reduce them again. Empty if the round is over for this member.
    left: Spans
    #: The elements to fetch: member, start, stop. Empty if the round is over for this member.
    fetch: tuple[tuple[str, int, int], ...]

    @property
    def reduces(self) -> bool:
        """True if the round has elements to reduce."""
        return self.restart or bool(self.left)


def spreading_pairs(plan: Plan) -> set[tuple[str, str]]:
    """Return the pairs of members over which means spread under a plan.

    They are the edges of the trees with at least half of the largest share. Plans give slow links small shares.
    """
    most = max(tree.share for tree in plan.trees)
    return {(source, target) for source, target, tree in plan.edges() if 2 * plan.trees[tree].share >= most}


def orders_for(member: str, holdings: Sequence[Holding], pairs: Collection[tuple[str, str]] = ()) -> RecoveryOrders:
    """Return the orders of `member`, given the holdings of all survivors, itself included.

    Means spread over `pairs`, edges of the new plan: a member fetches them from the neighbour that is nearest to a
    member that holds them, and that may have to fetch them first. So each edge carries them once, and a slow link that
    the plan avoids carries nothing.

    The round to recover is the first that is not over at every survivor. No member can be two rounds ahead of another,
    because a round needs every member's update. A survivor in a later round holds all means of this one. If a survivor
    has not begun this round, no survivor holds any of its means, because a mean needs that member's update; the means
    in such a survivor's holding are those of the round before.
    """
    first = {holding.member: holding.round + holding.over for holding in holdings}
    number = min(first.values())
    final = {its.member: spans.union(its.final) for its in holdings if its.round == number and not its.over}
    elements = max((its.elements for its in holdings if its.member in final), default=0)
    whole: Spans = ((0, elements),) if elements else ()
    held = {name: whole if first[name] > number else final.get(name, ()) for name in first}
    anywhere = spans.union(span for its in held.values() for span in its)
    if not anywhere:
        return RecoveryOrders(number, True, (), ())
    if first[member] > number:
        return RecoveryOrders(number, False, (), ())
    return RecoveryOrders(
        number, False, spans.minus(whole, anywhere), _fetches(member, spans.minus(anywhere, held[member]), held, pairs)
    )


def _fetches(
    member: str, missing: Spans, held: Mapping[str, Spans], pairs: Collection[tuple[str, str]]
) -> tuple[tuple[str, int, int], ...]:
    """Return the fetches of missing elements. Of equally near members each begins with another, to share the load."""
    names = sorted(held)
    begin = names.index(member)
    after = names[begin + 1 :] + names[:begin]
    beside: dict[str, set[str]] = {name: set() for name in names}
    for one, other in pairs:
        beside[one].add(other)
        beside[other].add(one)
    fetch: dict[str, list[Span]] = {}
    for holders, parts in _by_holders(missing, held).items():
        hops = _hops(beside, holders)
        near = [name for name in after if name in (beside[member] if member in hops else holders)]
        source = min(near, key=lambda name: hops[name])
        fetch.setdefault(source, []).extend(parts)
    return tuple((source, start, stop) for source, parts in fetch.items() for start, stop in sorted(parts))


def _hops(beside: Mapping[str, Collection[str]], begin: Collection[str]) -> dict[str, int]:
    """Return the hops from the nearest of the members `begin` to each member that they reach."""
    hops = dict.fromkeys(begin, 0)
    queue = deque(hops)
    while queue:
        member = queue.popleft()
        for name in beside[member]:
            if name not in hops:
                hops[name] = hops[member] + 1
                queue.append(name)
    return hops


def _by_holders(missing: Spans, held: Mapping[str, Spans]) -> dict[frozenset[str], Spans]:
    """Return the missing elements by the set of members that hold them."""
    parts: dict[frozenset[str], Spans] = {frozenset(): missing}
    for name, its in held.items():
        found: dict[frozenset[str], Spans] = {}
        for holders, part in parts.items():
            for also, those in ((holders | {name}, spans.both(part, its)), (holders, spans.minus(part, its))):
                if those:
                    found[also] = those
        parts = found
    return parts


@dataclass(frozen=True, slots=True)
class FinishedRound:
    """A completed round: its means, and the members whose updates each slice holds."""

    number: int
    slices: tuple[MeanSlice, ...]
    means: torch.Tensor


class Attempt:
    """A round in progress, which the surviving members go on with in a new generation if a member is lost.

    After such a loss, the elements that no survivor holds are reduced again, packed into a tensor of their own.

    Each try works on a copy of the residual until it has ended, because a thread that still encodes for an aborted try
    must not write into the residual that the next try sends.

    Attributes:
        values: The mean in the final slices, elsewhere this member's contribution.
        slices: The slices that are final here, in order.
    """

    def __init__(self, number: int, values: torch.Tensor, weight: float, residual: Residual | None) -> None:
        self.number = number
        self.values = values
        self.weight = weight
        self.slices: tuple[MeanSlice, ...] = ()
        self._residual = residual
        self._left: Spans = ()
        self._packed: torch.Tensor | None = None
        self._try_residual: Residual | None = None
        #: The residual of all elements as the newest aborted try left it.
        self._tried: torch.Tensor | None = None

    @property
    def elements(self) -> int:
        """The number of elements."""
        return len(self.values)

    @property
    def final(self) -> Spans:
        """The elements that hold their mean."""
        return spans.union((part.start, part.stop) for part in self.slices)

    @property
    def whole(self) -> bool:
        """True if all elements hold their mean."""
        return spans.count(self.final) == self.elements

    def absorb(self, finals: Iterable[MeanSlice]) -> None:
        """Add the final slices of a group's round, whose elements are counted in the tensor that the group reduced.

        Elements that were final before are ignored.
        """
        for part in finals:
            if self._packed is None:
                self._add(part)
                continue
            for (low, high), (start, stop) in spans.unpack(self._left, [(part.start, part.stop)]):
                self.values[start:stop] = self._packed[low:high]
                self._add(structs.replace(part, start=start, stop=stop))

    def put(self, start: int, means: torch.Tensor, slices: Iterable[MeanSlice]) -> None:
        """Store means that another member holds, from element `start` on.

        The residual of these elements becomes the one that the newest aborted try left: the means contain that try's
        contribution.
        """
        stop = start + len(means)
        self.values[start:stop] = means
        if self._residual is not None and self._residual.values is not None and self._tried is not None:
            self._residual.values[start:stop] = self._tried[start:stop]
        for part in slices:
            if max(part.start, start) < min(part.stop, stop):
                self._add(structs.replace(part, start=max(part.start, start), stop=min(part.stop, stop)))

    def begin(self) -> Residual | None:
        """Begin a try with all values. Return the residual for it."""
        self._left = ((0, self.elements),)
        if self._residual is not None:
            self._try_residual = Residual(self._residual.decay)
            self._try_residual.restore(self._residual.values)
        return self._try_residual

    def done(self) -> None:
        """Keep the residual of a try that completed the round."""
        if self._residual is not None and self._try_residual is not None:
            self._residual.values = self._try_residual.values

    def again(self) -> None:
        """Prepare another try with the elements that are not final, and restore their residual from before the round.

        Called by the thread that began the group's round, after that round has ended.
        """
        if self._residual is not None and self._try_residual is not None and self._try_residual.values is not None:
            self._keep_residual(self._residual, self._try_residual.values)
        self._packed = self._try_residual = None

    def pack(self, left: Spans) -> tuple[torch.Tensor, Residual | None]:
        """Return this member's contribution of the elements `left`, concatenated, and their residual."""
        self._left = left
        self._packed = torch.cat([self.values[start:stop] for start, stop in left])
        if self._residual is not None:
            self._try_residual = Residual(self._residual.decay)
            if (before := self._residual.values) is not None:
                self._try_residual.values = torch.cat([before[start:stop] for start, stop in left])
        return self._packed, self._try_residual

    def means(self, start: int, stop: int) -> torch.Tensor | None:
        """Return a copy of the means of the elements [start, stop), or None unless all are final."""
        held: Span = start, stop
        return None if spans.minus([held], self.final) else self.values[start:stop].clone()

    def finished_round(self, slices: tuple[MeanSlice, ...]) -> FinishedRound:
        """Return a copy of the completed round for later requests. The caller of the round owns the values again."""
        return FinishedRound(self.number, slices, self.values.clone())

    def _keep_residual(self, residual: Residual, after: torch.Tensor) -> None:
        """Keep a try's residual for its elements that became final."""
        before = residual.values
        self._tried = self.values.new_zeros(self.elements) if before is None else before.clone()
        for (low, high), (start, stop) in spans.unpack(self._left, [(0, len(after))]):
            self._tried[start:stop] = after[low:high]
        kept = self._tried.clone()
        for start, stop in spans.minus(self._left, self.final):
            kept[start:stop] = 0 if before is None else before[start:stop]
        residual.values = kept

    def _add(self, part: MeanSlice) -> None:
        fresh = spans.minus([(part.start, part.stop)], self.final)
        added = (structs.replace(part, start=start, stop=stop) for start, stop in fresh)
        self.slices = joined(sorted((*self.slices, *added), key=lambda one: one.start))


#: The number of elements fetched at a time: 1 MiB of float32.
PIECE = 256 * 1024


class Unfetched(Exception):
    """A member can't deliver the means that it holds; `loss` says why."""

    def __init__(self, loss: Loss) -> None:
        super().__init__(loss.why)
        self.loss = loss


def recover(
    group: AllReduceGroup, roster: Roster, orders: RecoveryOrders | None, attempt: Attempt, guard: threading.Condition
) -> RoundResult:
    """Finish a round that a lost member interrupted, among the group of the survivors, and return its result.

    `orders` is None if the round is over here. `guard` is held while the attempt changes.

    Raises:
        SyncError: The group's round failed, or was aborted.
        Unfetched: A member did not deliver its means.
    """
    done = None
    if orders is not None and not attempt.whole:
        if orders.fetch:
            _fetch_all(group, roster, orders.fetch, attempt, guard)
        if orders.left:
            with guard:
                packed, residual = attempt.pack(orders.left)
            done = group.begin(packed, attempt.weight, residual)()
            with guard:
                attempt.absorb(done.slices)
                attempt.again()
    log.info("%s: round %d recovered: %s", group.settings.member, attempt.number, attempt.slices)
    if done is None:
        nothing, epoch = (0.0, 0.0, 0, 0), group.settings.generation
        return RoundResult(attempt.values, attempt.number, epoch, True, *nothing, slices=attempt.slices, tally=Tally())
    return replace(done, tensor=attempt.values, round=attempt.number, slices=attempt.slices)


def _fetch_all(
    group: AllReduceGroup,
    roster: Roster,
    fetches: Iterable[tuple[str, int, int]],
    attempt: Attempt,
    guard: threading.Condition,
) -> None:
    """Fetch all missing means, from all peers at once.

    Each peer is asked in the order of the elements, in pieces that are the same at all members. So no members wait for
    each other in a circle: a member waits for earlier pieces, and for the same piece at a member nearer to a holder.

    After the group's `suspect_s` the peers that are still waited for are reported, as in a round. Else this member,
    for which others wait in the next round, would seem to wait for nobody.
    """
    pieces: dict[str, list[Span]] = {}
    for peer, start, stop in fetches:
        pieces.setdefault(peer, []).extend((at, min(at + PIECE, stop)) for at in range(start, stop, PIECE))
    given_up, errors = threading.Event(), list[Exception]()
    group.on_failure(lambda error: given_up.set())
    waited = set(pieces)

    def report_waits() -> None:
        for peer in sorted(waited):
            group.report_wait(peer, f"round {attempt.number}: means still come from {peer}")

    def fetch_from(peer: str) -> None:
        try:
            _fetch(group, roster, peer, attempt, pieces[peer], guard, given_up)
            waited.discard(peer)
        except Exception as error:  # else the round would end without these means
            errors.append(error)
            given_up.set()

    here, *others = pieces
    threads: list[threading.Thread] = []
    timer = threading.Timer(group.suspect_s, report_waits)
    timer.daemon = True
    try:
        if group.suspect_s < inf:
            start_thread(timer)
        for peer in others:
            thread = threading.Thread(target=fetch_from, args=(peer,), name=f"fetch from {peer}", daemon=True)
            start_thread(thread)
            threads.append(thread)
        fetch_from(here)
    except BaseException:
        given_up.set()
        raise
    finally:
        timer.cancel()
        for thread in threads:
            thread.join()
    if errors:
        del errors[1:]
        raise errors.pop()  # kept here, it would be in a cycle with this frame


def _fetch(
    group: AllReduceGroup,
    roster: Roster,
    peer: str,
    attempt: Attempt,
    pieces: Sequence[Span],
    guard: threading.Condition,
    given_up: threading.Event,
) -> None:
    settings = group.settings
    size = attempt.values.element_size()
    requests = [
        (FetchRequest(Wanted.MEANS, settings.generation, attempt.number, start, stop), (stop - start) * size)
        for start, stop in pieces
    ]
    try:
        with closing(fetch_all(peer, roster[peer], settings, requests, given_up)) as answers:
            for (start, stop), (_, most), answer in zip(pieces, requests, answers, strict=True):
                if not isinstance(answer.note, MeansNote) or len(answer.data) != most:
                    raise SyncError(f"{peer} sent {len(answer.data)} bytes of the {most} of elements [{start}, {stop})")
                means = torch.frombuffer(answer.data, dtype=attempt.values.dtype)
                with guard:
                    # After an abort this member has reported its final elements without these: the others may reduce
                    # them again.
                    group.check()
                    attempt.put(start, means, answer.note.slices)
                    guard.notify_all()  # peers that fetch these from this member
    except (SyncError, KeyError) as error:  # KeyError: the roster lacks the peer
        group.check()  # an abort that gave the fetch up is no fault of the peer
        why = f"round {attempt.number}, epoch {settings.generation}: {error}"
        raise Unfetched(Loss(peer, why)) from error
