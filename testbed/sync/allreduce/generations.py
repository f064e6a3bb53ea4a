"""A member's groups, one for each generation that is about: the one in force, those that may follow, the one before."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace

from testbed.plan import Plan
from testbed.sync.allreduce.group import AllReduceGroup, Roster
from testbed.sync.allreduce.receiver import Loss
from testbed.sync.executor import start
from testbed.sync.transport import CLOSE_S, TransportSettings


class Generations:
    """By the epoch of each generation's first plan; `epoch` is that of the one in force, whose group is `current`.

    `roster` holds all members that are, or will be, by where they listen. `on_lost` is told the epoch, and the loss,
    but of generations that are over. No lock of its own.
    """

    def __init__(
        self,
        plan: Plan,
        settings: TransportSettings,
        roster: Roster,
        after_round: int | None,
        reproducible: bool,
        on_lost: Callable[[int, Loss], None],
    ) -> None:
        self.epoch = plan.epoch
        self.roster = dict(roster)
        self._settings = settings
        self._reproducible = reproducible
        self._on_lost = on_lost
        self._next: dict[int, tuple[AllReduceGroup, str]] = {}
        self._before: AllReduceGroup | None = None
        self._retiring: list[threading.Thread] = []
        self.current = self.make(plan, roster, after_round)

    @property
    def newest(self) -> int:
        """The newest epoch that any group has heard of."""
        return max(self.current.plans.newest, *self._next, 0)

    def make(self, plan: Plan, roster: Roster, after_round: int | None) -> AllReduceGroup:
        """The group of a generation that begins with `plan`."""

        def lost(loss: Loss) -> None:
            self.tell_lost(plan.epoch, loss)

        settings = replace(self._settings, generation=plan.epoch)
        return AllReduceGroup(plan, settings, roster, after_round, self._reproducible, lost)

    def tell_lost(self, epoch: int, loss: Loss) -> None:
        """A peer of a generation is lost; of one that is over, it does not matter any more."""
        if epoch >= self.epoch:
            self._on_lost(epoch, loss)

    def about(self) -> list[AllReduceGroup]:
        """All of them."""
        return [self.current, *(group for group, _ in self._next.values()), *([self._before] if self._before else [])]

    def find(self, epoch: int) -> AllReduceGroup | None:
        """The group of a generation; None when there is none."""
        return next((group for group in self.about() if group.settings.generation == epoch), None)

    def add(self, group: AllReduceGroup, roster: Roster, source: str) -> None:
        """A generation may follow; its new member begins from the state of `source`."""
        self._next[group.settings.generation] = group, source
        self.roster |= roster

    def advance(self, finished: int) -> str | None:
        """A round is over: go over to the generation that all members have agreed on in it, if they have; then, the
        member whose state a new one begins from. The generation before the last ends."""
        retired, self._before = self._before, None
        if retired is not None:
            self.retire(retired, drain=True)
        agreed = self.current.plans.agreed
        if agreed not in self._next:
            return None
        following, source = self._next.pop(agreed)
        following.start(finished)
        self._before, self.current, self.epoch = self.current, following, agreed
        return source

    def replace(self, group: AllReduceGroup, roster: Roster) -> None:
        """Members were lost: a generation begins at once, and all others end."""
        for other in self.about():
            self.retire(other, drain=False)
        self._before, self._next = None, {}
        self.current, self.epoch, self.roster = group, group.settings.generation, dict(roster)

    def retire(self, group: AllReduceGroup, drain: bool) -> None:
        """Have done with a group, on a thread of its own: its peers may be dead."""

        def end() -> None:
            if drain:
                group.drain()
            group.close()

        thread = threading.Thread(target=end, name=f"retire generation {group.settings.generation}", daemon=True)
        start(thread)
        self._retiring = [one for one in self._retiring if one.is_alive()] + [thread]

    def close(self) -> None:
        """End all."""
        for group in self.about():
            group.close()
        for thread in self._retiring:
            thread.join(CLOSE_S)
