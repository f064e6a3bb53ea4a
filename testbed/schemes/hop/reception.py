"""Hop's rules, and a member's update queue, which fills and is averaged by them (Hop, section on queues).

A member waits for all updates of an iteration, for all but some (backup workers), or for updates that are not too old
(staleness).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from testbed.sync.gossip.effects import Steps, Until
from testbed.sync.gossip.neighbours import Neighbours, WeightedMean

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class HopRules:
    """Hop's modes as one value, the same for all members: what a member waits for, what bounds its lead, its leaps.

    The defaults are Hop's standard mode. HopOptions refuses combinations without meaning.
    """

    #: Tokens bound an edge's sender to this many iterations ahead of its receiver; None: no tokens.
    max_ig: int | None = None
    #: The number of an iteration's updates for which a member does not wait (N_buw).
    backup: int = 0
    #: Iterations by which a neighbour's newest update may be behind (s).
    staleness: int = 0
    #: The most iterations that a member which lags leaps at once; 1: no leaps.
    max_jump: int = 1
    #: The lag is this quantile of the out-neighbours' leads: 0 their minimum, 0.5 their median.
    quantile: float = 0.0
    #: A member sends only after its out-neighbours have acknowledged the last update.
    notify_ack: bool = False
    #: The local step goes on while updates are received and averaged.
    parallel: bool = False

    @property
    def skipping(self) -> bool:
        """True if a member that lags may skip iterations."""
        return self.max_jump > 1

    @property
    def slack(self) -> int:
        """The iterations by which an update can be behind its receiver and still count.

        A member that leaps is already in its new iteration while it averages updates of the one before.
        """
        return self.staleness + self.skipping

    def check(self, neighbours: Neighbours) -> None:
        """Raise ValueError where `neighbours` are too few for these rules."""
        if self.backup > len(neighbours.sources):
            raise ValueError(
                f"backup {self.backup}: {neighbours.member} has {len(neighbours.sources)} in-neighbours; set no more"
            )


class QueueOverflow(RuntimeError):
    """The queue got more updates than the protocol allows: a neighbour broke the bound on the iteration gap."""


@dataclass(frozen=True, slots=True, eq=False)
class Entry:
    """An update of `iteration` from `sender`; `update` is None where the sender skipped that iteration."""

    update: Tensor | None
    iteration: int
    sender: str


class UpdateQueue:
    """Entries in order of arrival. A `capacity` of None is no limit."""

    def __init__(self, capacity: int | None) -> None:
        self._entries: list[Entry] = []
        self.capacity = capacity

    def __iter__(self) -> Iterator[Entry]:
        return iter(self._entries)

    def enqueue(self, entry: Entry) -> None:
        """Add an entry. Raises QueueOverflow where there is no room."""
        if self.capacity is not None and len(self._entries) >= self.capacity:
            raise QueueOverflow(
                f"the update of iteration {entry.iteration} from {entry.sender} exceeds the queue's capacity of "
                f"{self.capacity} updates"
            )
        self._entries.append(entry)

    def has(self, iteration: int) -> bool:
        """Return whether an entry of this iteration has come."""
        return any(entry.iteration == iteration for entry in self._entries)

    def take(self, iteration: int) -> list[Entry]:
        """Take out the entries of this iteration that have come."""
        taken = [entry for entry in self._entries if entry.iteration == iteration]
        self._entries = [entry for entry in self._entries if entry.iteration != iteration]
        return taken

    def drop_from(self, sender: str) -> None:
        """Drop the entries from `sender`."""
        self._entries = [entry for entry in self._entries if entry.sender != sender]

    def drop_older(self, iteration: int) -> None:
        """Drop the entries that are older than `iteration`."""
        self._entries = [entry for entry in self._entries if entry.iteration >= iteration]


class Reception(ABC):
    """A member's update queue, with the rule by which the queue fills and is averaged."""

    def __init__(self, neighbours: Neighbours, rules: HopRules) -> None:
        self.queue = UpdateQueue(None)
        self.oldest = 0
        self._rules = rules
        self._neighbours = neighbours
        self._early: list[Entry] = []
        self._senders: frozenset[str] = frozenset()
        self.expect(neighbours.sources)

    def enqueue(self, entry: Entry) -> None:
        """Add an entry, unless no average will count it.

        The first member that changes to another graph sends to members that have not changed yet. So an entry from a
        sender that is not expected waits aside until the sender is, or until the entry is too old.
        """
        if entry.sender in self._senders:
            self._take_in(entry)
        else:
            self._early.append(entry)

    def expect(self, senders: tuple[str, ...]) -> None:
        """Accept updates from these senders from now on."""
        self._senders = frozenset(senders)
        max_ig = self._rules.max_ig
        self.queue.capacity = None if max_ig is None else (1 + max_ig) * (len(senders) + 1)
        early, self._early = self._early, []
        for entry in early:
            self.enqueue(entry)

    def change_neighbours(self, neighbours: Neighbours) -> None:
        """Replace the neighbours. Nothing counts any more from members that are left out."""
        for sender in self._senders - {*neighbours.sources}:
            self.queue.drop_from(sender)
        self._neighbours = neighbours
        self.expect(neighbours.sources)

    def begin(self, iteration: int) -> None:
        """Prepare for the average of `iteration`: drop what is too old for it."""
        self._early = [entry for entry in self._early if entry.iteration >= iteration]
        self.oldest = iteration - self._rules.staleness

    def begun(self) -> Steps[Tensor]:
        """Wait until each in-neighbour has sent an update, and return the updates' weighted mean.

        A member that joins begins with this mean. Its own parameters do not count.
        """
        average = WeightedMean()
        for sender in self._neighbours.sources:
            entry = yield from self._first_of(sender)
            if entry is not None:
                average.add(entry, self._neighbours.weights[sender])
        return average.value

    def _first_of(self, sender: str) -> Steps[Tensor | None]:
        """Return an update of the sender, which stays in the queue; None if the sender left before it sent one."""

        def found() -> Tensor | None:
            kept = (entry.update for entry in self.queue if entry.sender == sender and entry.update is not None)
            return next(kept, None)

        yield Until(
            lambda: found() is not None or sender not in self._neighbours.sources, f"the parameters of {sender}"
        )
        return found()

    def remove(self, gone: str) -> None:
        """Drop the updates of `gone`, and wait for none. If that member joins again, it counts as another member."""
        self._neighbours = self._neighbours.without(gone)
        self.queue.drop_from(gone)
        self._early = [entry for entry in self._early if entry.sender != gone]

    @abstractmethod
    def _take_in(self, entry: Entry) -> None:
        """Add an entry from an in-neighbour."""

    @abstractmethod
    def average(self, own: Entry, iteration: int) -> Steps[Tensor]:
        """Wait for the updates that `iteration` needs, and return their average with the member's own parameters."""

    @abstractmethod
    def reach(self) -> int | None:
        """Return the last iteration in which a leap may end, given the updates that came; None: they set no bound."""


class Backup(Reception):
    """Waits for an iteration's updates from all in-neighbours but `backup`, then adds the others that have come.

    A `backup` of 0 is the standard mode. A skipped update counts as come, and adds nothing.
    """

    def begin(self, iteration: int) -> None:
        """Prepare for the average of `iteration`: drop what is too old for it, also from the queue."""
        super().begin(iteration)
        self.queue.drop_older(iteration)

    def _take_in(self, entry: Entry) -> None:
        if entry.iteration >= self.oldest:
            self.queue.enqueue(entry)

    def average(self, own: Entry, iteration: int) -> Steps[Tensor]:
        """Wait for the updates of all in-neighbours but `backup`, and return the mean of those that have come."""
        average = WeightedMean()
        self._count(average, [own])
        counted: set[str] = set()
        while not self._enough(counted):
            # Updates leave the queue one by one as they come: its capacity has no room for the iteration before the
            # member's own, for which a member that leaps waits.
            yield self._one_more(counted, iteration)
            counted |= self._take(average, iteration)
        self._take(average, iteration)
        return average.value

    def _one_more(self, counted: set[str], iteration: int) -> Until:
        """Return the wait for another update, or for the moment when enough are counted."""
        missing = self._missing(counted)
        return Until(
            lambda: self.queue.has(iteration) or self._enough(counted),
            f"updates of iteration {iteration} from {len(missing) - self._rules.backup} of {', '.join(missing)}",
        )

    def _take(self, average: WeightedMean, iteration: int) -> set[str]:
        """Add the updates of `iteration` that have come to the average, and return their senders."""
        entries = self.queue.take(iteration)
        self._count(average, entries)
        return {entry.sender for entry in entries}

    def _missing(self, counted: set[str]) -> list[str]:
        return [source for source in self._neighbours.sources if source not in counted]

    def _enough(self, counted: set[str]) -> bool:
        return len(self._missing(counted)) <= self._rules.backup

    def reach(self) -> int | None:
        """Return None: the updates that came do not bound a leap."""
        return None

    def _count(self, average: WeightedMean, entries: list[Entry]) -> None:
        for entry in entries:
            if entry.update is not None and entry.sender in self._neighbours.weights:
                average.add(entry.update, self._neighbours.weights[entry.sender])


class Stale(Reception):
    """Keeps each in-neighbour's newest update and waits while it is older than the window.

    The window of iteration k begins at k - s; an update of iteration t counts t - (k - s) + 1 times its weight.
    """

    def _take_in(self, entry: Entry) -> None:
        kept = self._newest(entry.sender)
        if entry.update is None or entry.iteration < self.oldest or (kept and kept.iteration > entry.iteration):
            return
        self.queue.drop_from(entry.sender)
        self.queue.enqueue(entry)

    def average(self, own: Entry, iteration: int) -> Steps[Tensor]:
        """Wait until each in-neighbour's newest update is within the window, and return their mean, weighted by age."""
        first = iteration - self._rules.staleness
        average = WeightedMean()
        # A leaping member's own update is older than the window. It counts once, or the member's steps would be lost.
        self._count(average, own, max(own.iteration - first + 1, 1))
        for sender in self._neighbours.sources:
            entry = yield from self._within(sender, first)
            if entry is not None:
                self._count(average, entry, entry.iteration - first + 1)
        return average.value

    def reach(self) -> int | None:
        """Return the last iteration in which a leap may end: the updates that came suffice for the one before.

        A leap averages the updates of the iteration before its end. A longer leap would break the bound (s + 1) × hops.
        """
        newest = [self._newest(sender) for sender in self._neighbours.sources]
        oldest = min(entry.iteration if entry else -1 for entry in newest)
        return oldest + self._rules.staleness + 1

    def _within(self, sender: str, first: int) -> Steps[Entry | None]:
        """Return the sender's newest update once it is of `first` or later; None where the sender left before that."""
        yield Until(
            lambda: self._is_within(sender, first) or sender not in self._neighbours.sources,
            f"an update of iteration {first} or later from {sender}",
        )
        return self._newest(sender) if self._is_within(sender, first) else None

    def _is_within(self, sender: str, first: int) -> bool:
        entry = self._newest(sender)
        return entry is not None and entry.iteration >= first

    def _newest(self, sender: str) -> Entry | None:
        return next((entry for entry in self.queue if entry.sender == sender), None)

    def _count(self, average: WeightedMean, entry: Entry, times: int) -> None:
        if entry.update is not None:
            average.add(entry.update, times * self._neighbours.weights[entry.sender])
