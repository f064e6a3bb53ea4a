"""What a member waits for and how it averages: all, all but some (backup workers), or the not too old (staleness)."""

from __future__ import annotations

from abc import ABC, abstractmethod

from torch import Tensor

from testbed.schemes.hop.rules import HopRules
from testbed.schemes.hop.updates import Entry, UpdateQueue
from testbed.sync.gossip.average import WeightedMean
from testbed.sync.gossip.effects import Steps, Until
from testbed.sync.gossip.neighbours import Neighbours


class Reception(ABC):
    """A member's update queue with the rule by which it fills and is averaged."""

    def __init__(self, neighbours: Neighbours, rules: HopRules) -> None:
        self.queue = UpdateQueue(None)
        self.oldest = 0
        self._max_ig = rules.max_ig
        self._neighbours = neighbours
        self._weights = dict(neighbours.weights)
        self._early: list[Entry] = []
        self._senders: frozenset[str] = frozenset()
        self.expect(neighbours.sources)

    def enqueue(self, entry: Entry) -> None:
        """Takes an entry in, unless no average will count it.

        A member that changes to another graph first sends to members that have not heard of it: what comes of those
        that are not expected waits aside until they are, and goes when it turns out to be old.
        """
        if entry.sender in self._senders:
            self._take_in(entry)
        else:
            self._early.append(entry)

    def expect(self, senders: tuple[str, ...]) -> None:
        """Updates may come of these from now on."""
        self._senders = frozenset(senders)
        self.queue.capacity = None if self._max_ig is None else (1 + self._max_ig) * (len(senders) + 1)
        early, self._early = self._early, []
        for entry in early:
            self.enqueue(entry)

    def turn(self, neighbours: Neighbours) -> None:
        """The next average is among others, and nothing counts of members that are left out."""
        for sender in self._senders - {*neighbours.sources}:
            self.queue.drop_from(sender)
        self._neighbours = neighbours
        self._weights = dict(neighbours.weights)
        self.expect(neighbours.sources)

    def begin(self, iteration: int) -> None:
        """`iteration` is the one that will be averaged next: what is too old for it goes."""
        self._early = [entry for entry in self._early if entry.iteration >= iteration]
        self._drop_old(iteration)

    def begun(self) -> Steps[Tensor]:
        """For a member that joins the others: waits for each in-neighbour's first update to it; the average, without
        its own."""
        average = WeightedMean()
        for sender in self._neighbours.sources:
            entry = yield from self._first_of(sender)
            if entry is not None:
                average.add(entry, self._weights[sender])
        return average.value

    def _first_of(self, sender: str) -> Steps[Tensor | None]:
        """An update of the sender, left where it is; None when the sender has gone before there was one."""

        def found() -> Tensor | None:
            kept = (entry.update for entry in self.queue if entry.sender == sender and entry.update is not None)
            return next(kept, None)

        yield Until(
            lambda: found() is not None or sender not in self._neighbours.sources, f"the parameters of {sender}"
        )
        return found()

    def forget(self, gone: str) -> None:
        """Nothing of `gone` is waited for any more, or counts: should it come again, that is another's."""
        self._neighbours = self._neighbours.without(gone)
        self.queue.drop_from(gone)
        self._early = [entry for entry in self._early if entry.sender != gone]

    @abstractmethod
    def _take_in(self, entry: Entry) -> None:
        """Takes in what came of an in-neighbour."""

    @abstractmethod
    def average(self, own: Entry, iteration: int) -> Steps[Tensor]:
        """Waits for what `iteration` needs; the average of that and the member's own parameters."""

    @abstractmethod
    def _drop_old(self, iteration: int) -> None:
        """Drops what is too old for the average of `iteration`."""

    @abstractmethod
    def reach(self) -> int | None:
        """The furthest iteration that a leap may end in, as far as arrivals bound it; None where they do not."""


class Backup(Reception):
    """Waits for the iteration's updates from all but `spare`, then takes what else of that iteration is there.

    With none to spare it is the standard mode. A skipped update counts as come, and adds nothing.
    """

    def __init__(self, neighbours: Neighbours, rules: HopRules) -> None:
        super().__init__(neighbours, rules)
        self._spare = rules.backup

    def _take_in(self, entry: Entry) -> None:
        if entry.iteration >= self.oldest:
            self.queue.enqueue(entry)

    def average(self, own: Entry, iteration: int) -> Steps[Tensor]:
        average = WeightedMean()
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

    def _take(self, average: WeightedMean, iteration: int) -> Steps[set[str]]:
        """Counts what there is of `iteration`; whose it was."""
        entries = yield from self.queue.dequeue(self.queue.size(iteration), iteration)
        self._count(average, entries)
        return {entry.sender for entry in entries}

    def _missing(self, counted: set[str]) -> list[str]:
        return [source for source in self._neighbours.sources if source not in counted]

    def _enough(self, counted: set[str]) -> bool:
        return len(self._missing(counted)) <= self._spare

    def _drop_old(self, iteration: int) -> None:
        self.oldest = iteration
        self.queue.drop_older(iteration)

    def reach(self) -> int | None:
        return None

    def _count(self, average: WeightedMean, entries: list[Entry]) -> None:
        for entry in entries:
            if entry.update is not None and entry.sender in self._weights:
                average.add(entry.update, self._weights[entry.sender])


class Stale(Reception):
    """Keeps each in-neighbour's newest update and waits while it is older than the window.

    The window of iteration k begins at k - s; an update of iteration t counts t - (k - s) + 1 times its weight.
    """

    def __init__(self, neighbours: Neighbours, rules: HopRules) -> None:
        super().__init__(neighbours, rules)
        self._staleness = rules.staleness

    def _take_in(self, entry: Entry) -> None:
        kept = self._newest(entry.sender)
        if entry.update is None or entry.iteration < self.oldest or (kept and kept.iteration > entry.iteration):
            return
        self.queue.drop_from(entry.sender)
        self.queue.enqueue(entry)

    def average(self, own: Entry, iteration: int) -> Steps[Tensor]:
        first = iteration - self._staleness
        average = WeightedMean()
        # A member that leaps is itself older than the window; it counts once, or what it learned would be lost.
        self._count(average, own, max(own.iteration - first + 1, 1))
        for sender in self._neighbours.sources:
            entry = yield from self._within(sender, first)
            if entry is not None:
                self._count(average, entry, entry.iteration - first + 1)
        return average.value

    def _drop_old(self, iteration: int) -> None:
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

    def _count(self, average: WeightedMean, entry: Entry, times: int) -> None:
        if entry.update is not None:
            average.add(entry.update, times * self._weights[entry.sender])
