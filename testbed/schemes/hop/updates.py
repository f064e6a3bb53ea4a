"""The update queue: where a member keeps what its neighbours sent until it averages (Hop, section on queues)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from torch import Tensor

from testbed.sync.gossip.effects import Steps, Until


class QueueOverflow(RuntimeError):
    """More updates than the protocol can have under way: a neighbour broke the bound on the iteration gap."""


@dataclass(frozen=True, slots=True, eq=False)
class Entry:
    """An update of `iteration` from `sender`; None where it skipped that iteration."""

    update: Tensor | None
    iteration: int
    sender: str


class UpdateQueue:
    """Entries in order of arrival; `capacity` None is without limit."""

    def __init__(self, capacity: int | None) -> None:
        self._entries: list[Entry] = []
        self.capacity = capacity

    def __iter__(self) -> Iterator[Entry]:
        return iter(self._entries)

    def enqueue(self, entry: Entry) -> None:
        """Adds an entry; QueueOverflow when there is no room."""
        if self.capacity is not None and len(self._entries) >= self.capacity:
            raise QueueOverflow(
                f"the update of iteration {entry.iteration} from {entry.sender} finds {self.capacity} others waiting"
            )
        self._entries.append(entry)

    def dequeue(self, count: int, iteration: int | None = None, sender: str | None = None) -> Steps[list[Entry]]:
        """Waits for `count` entries that match and takes the first of them out."""
        yield Until(
            lambda: self.size(iteration, sender) >= count,
            f"{count} updates of iteration {iteration} from {sender or 'anyone'}",
        )
        taken = self._matching(iteration, sender)[:count]
        self._entries = [entry for entry in self._entries if entry not in taken]
        return taken

    def size(self, iteration: int | None = None, sender: str | None = None) -> int:
        """How many entries match."""
        return len(self._matching(iteration, sender))

    def drop_from(self, sender: str) -> None:
        """Forgets what `sender` sent."""
        self._entries = [entry for entry in self._entries if entry.sender != sender]

    def drop_older(self, iteration: int) -> None:
        """Forgets what is older than `iteration`."""
        self._entries = [entry for entry in self._entries if entry.iteration >= iteration]

    def _matching(self, iteration: int | None, sender: str | None) -> list[Entry]:
        return [
            entry for entry in self._entries if iteration in (None, entry.iteration) and sender in (None, entry.sender)
        ]
