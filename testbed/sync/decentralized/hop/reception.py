"""What a member waits for and how it averages: all, all but some (backup workers), or the not too old (staleness)."""

from __future__ import annotations

from abc import ABC, abstractmethod

from torch import Tensor

from testbed.sync.decentralized.average import Average
from testbed.sync.decentralized.effects import Steps, Until
from testbed.sync.decentralized.hop.rules import HopRules
from testbed.sync.decentralized.hop.updates import Entry, UpdateQueue
from testbed.sync.decentralized.neighbours import Neighbours


class Reception(ABC):
    """A member's update queue with the rule by which it fills and is averaged."""

    def __init__(self, neighbours: Neighbours, rules: HopRules) -> None:
        around = len(neighbours.sources) + 1
        self.queue = UpdateQueue(None if rules.max_ig is None else (1 + rules.max_ig) * around)
        self.oldest = 0
        self._neighbours = neighbours

    @abstractmethod
    def enqueue(self, entry: Entry) -> None:
        """Takes an entry in, unless no average will count it."""

    @abstractmethod
    def average(self, own: Entry, iteration: int) -> Steps[Tensor]:
        """Waits for what `iteration` needs; the average of that and the member's own parameters."""

    @abstractmethod
    def begin(self, iteration: int) -> None:
        """`iteration` is the one that will be averaged next: what is too old for it goes."""

    @abstractmethod
    def reach(self) -> int | None:
        """The furthest iteration that a leap may end in, as far as arrivals bound it; None where they do not."""

    def _weight(self, entry: Entry) -> float:
        return self._neighbours.weights[entry.sender]


class Backup(Reception):
    """Waits for the iteration's updates from all but `spare`, then takes what else of that iteration is there.

    With none to spare it is the standard mode. A skipped update counts as come, and adds nothing.
    """

    def __init__(self, neighbours: Neighbours, rules: HopRules) -> None:
        super().__init__(neighbours, rules)
        self._needed = len(neighbours.sources) - rules.backup

    def enqueue(self, entry: Entry) -> None:
        if entry.iteration >= self.oldest:
            self.queue.enqueue(entry)

    def average(self, own: Entry, iteration: int) -> Steps[Tensor]:
        average = Average()
        self._count(average, [own])
        for _ in range(self._needed):
            # One by one as they come: the queue's capacity has no room for an iteration before the member's own,
            # which is what one that leaps waits for.
            self._count(average, (yield from self.queue.dequeue(1, iteration)))
        self._count(average, (yield from self.queue.dequeue(self.queue.size(iteration), iteration)))
        return average.value

    def begin(self, iteration: int) -> None:
        self.oldest = iteration
        self.queue.drop_older(iteration)

    def reach(self) -> int | None:
        return None

    def _count(self, average: Average, entries: list[Entry]) -> None:
        for entry in entries:
            if entry.update is not None:
                average.add(entry.update, self._weight(entry))


class Stale(Reception):
    """Keeps each in-neighbour's newest update and waits while it is older than the window.

    The window of iteration k begins at k - s; an update of iteration t counts t - (k - s) + 1 times its weight.
    """

    def __init__(self, neighbours: Neighbours, rules: HopRules) -> None:
        super().__init__(neighbours, rules)
        self._staleness = rules.staleness

    def enqueue(self, entry: Entry) -> None:
        kept = self._newest(entry.sender)
        if entry.update is None or entry.iteration < self.oldest or (kept and kept.iteration > entry.iteration):
            return
        self.queue.drop_from(entry.sender)
        self.queue.enqueue(entry)

    def average(self, own: Entry, iteration: int) -> Steps[Tensor]:
        first = iteration - self._staleness
        average = Average()
        # A member that leaps is itself older than the window; it counts once, or what it learned would be lost.
        self._count(average, own, max(own.iteration - first + 1, 1))
        for sender in self._neighbours.sources:
            entry = yield from self._within(sender, first)
            self._count(average, entry, entry.iteration - first + 1)
        return average.value

    def begin(self, iteration: int) -> None:
        self.oldest = iteration - self._staleness

    def reach(self) -> int | None:
        """A leap must not break the bound (s + 1) x hops, so it ends where the newest that came would do anyway."""
        newest = [self._newest(sender) for sender in self._neighbours.sources]
        oldest = min(entry.iteration if entry else -1 for entry in newest)
        return oldest + self._staleness + 1

    def _within(self, sender: str, first: int) -> Steps[Entry]:
        yield Until(lambda: self._is_within(sender, first), f"an update of iteration {first} or later from {sender}")
        entry = self._newest(sender)
        assert entry is not None
        return entry

    def _is_within(self, sender: str, first: int) -> bool:
        entry = self._newest(sender)
        return entry is not None and entry.iteration >= first

    def _newest(self, sender: str) -> Entry | None:
        return next((entry for entry in self.queue if entry.sender == sender), None)

    def _count(self, average: Average, entry: Entry, times: int) -> None:
        if entry.update is not None:
            average.add(entry.update, times * self._weight(entry))
