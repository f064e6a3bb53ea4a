"""A member's groups: of the current generation, of generations that may follow, and of the previous one."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from testbed.plan import Plan
from testbed.sync.allreduce.group import AllReduceGroup, Roster
from testbed.sync.allreduce.receiver import Loss
from testbed.sync.executor import start
from testbed.sync.transport import CLOSE_S, TransportSettings


class Generations:
    """Groups by generation, which is the epoch of the generation's first plan. The caller holds the lock.

    Args:
        after_round: The round before the first one; None if `start` will tell it.
        reproducible: Fix the order of additions.
        on_lost: Called with the generation and the loss of a peer, except in generations that are over.
        on_unreached: Called with the generation and the peers that a look did not reach.
    """

    def __init__(
        self,
        plan: Plan,
        settings: TransportSettings,
        roster: Roster,
        after_round: int | None,
        reproducible: bool,
        on_lost: Callable[[int, Loss], None],
        on_unreached: Callable[[int, tuple[str, ...]], None],
    ) -> None:
        #: The generation in force.
        self.epoch = plan.epoch
        #: The address of each present and future member.
        self.roster = dict(roster)
        self._settings = settings
        self._reproducible = reproducible
        self._on_lost = on_lost
        self._on_unreached = on_unreached
        self._next: dict[int, tuple[AllReduceGroup, str]] = {}
        self._before: AllReduceGroup | None = None
        self._retiring: dict[threading.Thread, AllReduceGroup] = {}
        self.current = self.make(plan, roster, after_round)

    @property
    def newest(self) -> int:
        """The newest epoch that any group knows."""
        return max(self.current.plans.newest, *self._next, 0)

    def make(self, plan: Plan, roster: Roster, after_round: int | None) -> AllReduceGroup:
        """Return a new group for the generation that begins with `plan`."""
        settings = replace(self._settings, generation=plan.epoch)
        lost, unreached = partial(self.report_lost, plan.epoch), partial(self._on_unreached, plan.epoch)
        return AllReduceGroup(plan, settings, roster, after_round, self._reproducible, lost, unreached)

    def report_lost(self, epoch: int, loss: Loss) -> None:
        """Report a lost peer, unless the generation of `epoch` is over."""
        if epoch >= self.epoch:
            self._on_lost(epoch, loss)

    def all_groups(self) -> list[AllReduceGroup]:
        """Return the groups of all generations."""
        return [self.current, *(group for group, _ in self._next.values()), *([self._before] if self._before else [])]

    def find(self, epoch: int) -> AllReduceGroup | None:
        """Return the group of a generation, or None."""
        return next((group for group in self.all_groups() if group.settings.generation == epoch), None)

    def add(self, group: AllReduceGroup, roster: Roster, source: str) -> None:
        """Add a generation that may follow; its new member starts from the state of `source`."""
        self._next[group.settings.generation] = group, source
        self.roster |= roster

    def advance(self, finished: int) -> str | None:
        """Switch to the next generation if round `finished` agreed on it, and end the generation before last.

        Returns:
            The member whose state the new member starts from; None if the generation stays.
        """
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
        """Begin a generation at once, because members were lost. All others end."""
        for other in self.all_groups():
            self.retire(other, drain=False)
        self._before, self._next = None, {}
        self.current, self.epoch, self.roster = group, group.settings.generation, dict(roster)

    def retire(self, group: AllReduceGroup, drain: bool) -> None:
        """Close a group on a thread of its own, because its peers may be dead. `drain` sends queued frames first."""

        def end() -> None:
            if drain:
                group.drain()
            group.close()

        thread = threading.Thread(target=end, name=f"retire generation {group.settings.generation}", daemon=True)
        start(thread)
        alive = {one: its for one, its in self._retiring.items() if one.is_alive()}
        self._retiring = {**alive, thread: group}

    def close(self) -> None:
        """Close all groups, also those whose queued frames are still sent."""
        for group in (*self.all_groups(), *self._retiring.values()):
            group.close()
        for thread in self._retiring:
            thread.join(CLOSE_S)
