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
        self._weights = dict(neighbours.weights)

    def forget(self, gone: str) -> None:
        """Nothing of `gone` is waited for any more; what has come of it still counts."""
        weight = self._neighbours.weights.get(gone, 0.0)
        self._neighbours = self._neighbours.without(gone)
        self._weights[gone] = weight

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
        return self._weights[entry.sender]


class Backup(Reception):
    """Waits for the iteration's updates from all but `spare`, then takes what else of that iteration is there.

    With none to spare it is the standard mode. A skipped update counts as come, and adds nothing.
    """

    def __init__(self, neighbours: Neighbours, rules: HopRules) -> None:
        super().__init__(neighbours, rules)
        self._spare = rules.backup

    def enqueue(self, entry: Entry) -> None:
        if entry.iteration >= self.oldest:
            self.queue.enqueue(entry)

    def average(self, own: Entry, iteration: int) -> Steps[Tensor]:
        average = Average()
        self._count(average, [own])
        counted: set[str] = set()
        while not self._enough(counted):
            # One by one as they come: the queue's capacity has no room for an iteration before the member's own,
            # which is what one that leaps waits for.
            yield self._one_more(counted, iteration)
            counted |= yield from self._take(average, iteration)
        yield from self._take(average, iteration)
        return average.value

    def _one_more(self, counted: set[str], iteration: int) -> Until:
        """Until there is another update, or it turns out that enough are counted."""
        missing = self._missing(counted)
        return Until(
            lambda: self.queue.size(iteration) > 0 or self._enough(counted),
            f"updates of iteration {iteration} from {len(missing) - self._spare} of {', '.join(missing)}",
        )

    def _take(self, average: Average, iteration: int) -> Steps[set[str]]:
        """Counts what there is of `iteration`; whose it was."""
        entries = yield from self.queue.dequeue(self.queue.size(iteration), iteration)
        self._count(average, entries)
        return {entry.sender for entry in entries}

    def _missing(self, counted: set[str]) -> list[str]:
        return [source for source in self._neighbours.sources if source not in counted]

    def _enough(self, counted: set[str]) -> bool:
        return len(self._missing(counted)) <= self._spare

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
            if entry is not None:
                self._count(average, entry, entry.iteration - first + 1)
        return average.value

    def begin(self, iteration: int) -> None:
        self.oldest = iteration - self._staleness

    def reach(self) -> int | None:
        """A leap must not break the bound (s + 1) x hops, so it ends where the newest that came would do anyway."""
        newest = [self._newest(sender) for sender in self._neighbours.sources]
        oldest = min(entry.iteration if entry else -1 for entry in newest)
        return oldest + self._staleness + 1

    def _within(self, sender: str, first: int) -> Steps[Entry | None]:
        """The sender's newest, once it is of `first` or later; None of one that has gone before that."""
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

    def _count(self, average: Average, entry: Entry, times: int) -> None:
        if entry.update is not None:
            average.add(entry.update, times * self._weight(entry))
