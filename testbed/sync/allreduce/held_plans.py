"""The plans that a member holds: the plan in force, possible successors, and older plans that frames still use."""

from __future__ import annotations

import threading

from testbed.plan import Plan, PlanError
from testbed.sync.allreduce.role import Layout, RoundRole, role_in


class HeldPlans:
    """Plans by epoch, with this member's role in each.

    Any thread may call the methods, except `layout`, which is for the threads that open rounds.
    """

    def __init__(self, member: str, first: Plan) -> None:
        #: The epoch that the next round uses.
        self.agreed = first.epoch
        #: The epoch that this member is ready to use after `agreed`.
        self.successor = first.epoch
        #: The newest epoch that all members are known to hold.
        self.confirmed = first.epoch
        self._member = member
        self._guard = threading.Lock()
        self._oldest = first.epoch
        self._plans: dict[int, Plan] = {}
        self._values_bytes: dict[int, int] = {}
        self._roles: dict[tuple[int, bool], RoundRole] = {}
        self._layout: tuple[tuple[int, bool, int, int], Layout] | None = None
        self._add(first)

    def __contains__(self, epoch: int) -> bool:
        return epoch in self._plans

    def __getitem__(self, epoch: int) -> Plan:
        return self._plans[epoch]

    def get(self, epoch: int) -> Plan | None:
        """Return the plan of an epoch, or None if it is not held."""
        return self._plans.get(epoch)

    def role(self, epoch: int, among_all: bool) -> RoundRole:
        """Return this member's role in rounds among all, or in rounds inside its own group."""
        return self._roles[epoch, among_all]

    def layout(self, epoch: int, among_all: bool, elements: int, itemsize: int) -> Layout:
        """Return the chunks of a tensor in rounds of one kind.

        The last layout is kept, because making one costs 1 µs a chunk.

        Args:
            epoch: The epoch of the plan that the rounds use.
            among_all: True for rounds among all, False for rounds inside this member's group.
            elements: The tensor's number of elements.
            itemsize: The bytes of an element.
        """
        key = epoch, among_all, elements, itemsize
        if self._layout is None or self._layout[0] != key:
            group = self._roles[epoch, among_all].group
            self._layout = key, Layout(group, self._values_bytes[epoch], elements, itemsize)
        return self._layout[1]

    @property
    def in_force(self) -> Plan:
        """The plan that the next round uses; the newest held one once another generation is agreed on."""
        return self._plans.get(self.agreed) or self._plans[max(self._plans)]

    @property
    def newest(self) -> int:
        """The newest epoch that this member knows."""
        with self._guard:
            return max(*self._plans, self.successor)

    @property
    def most_bytes(self) -> int:
        """The largest chunk under any held plan, in bytes."""
        with self._guard:
            return max(self._values_bytes.values())

    def keep(self, plan: Plan) -> None:
        """Keep a plan beside the one in force.

        Another kept plan that is not in force stops being the successor, even if this plan is refused: the controller
        sends a plan only after the earlier one has come into force or was dropped. It stays kept, because the current
        round may still agree on it.

        Raises:
            PlanError: The plan is for other members, or not newer than the kept ones.
        """
        with self._guard:
            self.successor = self.confirmed = self.agreed
            if plan.members != self.in_force.members:
                raise PlanError(
                    f"the plan of epoch {plan.epoch} is for other members than those of this session",
                    field="members",
                    epoch=plan.epoch,
                )
            self._check_newer(plan.epoch)
            self._add(plan)

    def hold(self, epoch: int) -> None:
        """Make a kept plan the successor, unless a newer one was kept meanwhile."""
        with self._guard:
            if epoch == max(self._plans):
                self.successor = epoch

    def confirm(self, epoch: int) -> None:
        """Record that all members hold a plan, unless a newer one was kept meanwhile."""
        with self._guard:
            if epoch == max(self._plans):
                self.confirmed = epoch

    def promise(self, epoch: int) -> None:
        """Make `epoch`, the first of another generation, the successor.

        Raises:
            PlanError: The epoch is not newer than the kept ones.
        """
        with self._guard:
            self._check_newer(epoch)
            self.successor = epoch

    def agree(self, used: int, agreed: int) -> None:
        """Record that a round among all, which used epoch `used`, agreed on epoch `agreed` for the next round."""
        with self._guard:
            self.agreed = agreed
            self._oldest = used

    def advance(self, epoch: int) -> None:
        """Use `epoch` in the next round, if it is newer than the epoch that rounds among all agreed on."""
        with self._guard:
            self.agreed = max(self.agreed, epoch)

    def last_before(self, number: int) -> int:
        """Return the last round that a peer can be in while this member has begun none after `number`.

        That round is the next round among all, under the plan in force or under a newer plan that came into force
        without this member's knowledge.
        """
        with self._guard:
            period = self.in_force.period
            newer = (plan.period - 1 for epoch, plan in self._plans.items() if epoch > self.agreed)
            return (number // period + 1) * period + sum(newer)

    def forget(self) -> int:
        """Drop plans older than that of the last round among all, because no frame can use them.

        Returns:
            The oldest epoch left.
        """
        with self._guard:
            for epoch in [epoch for epoch in self._plans if epoch < self._oldest]:
                del self._plans[epoch], self._values_bytes[epoch]
                self._roles.pop((epoch, False), None)
                del self._roles[epoch, True]
            return self._oldest

    def _check_newer(self, epoch: int) -> None:
        if epoch <= max(self._plans):
            raise PlanError(
                f"epoch {epoch} is not newer than the held epoch {max(self._plans)}", field="epoch", epoch=epoch
            )

    def _add(self, plan: Plan) -> None:
        self._roles[plan.epoch, True] = role_in(plan, plan.whole, self._member)
        for group in plan.groups:
            if self._member in group.members:
                self._roles[plan.epoch, False] = role_in(plan, group, self._member)
        self._values_bytes[plan.epoch] = plan.values_bytes()
        self._plans[plan.epoch] = plan
