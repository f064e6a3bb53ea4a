"""Why plans are considered, and what waits until the swap under way is over."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Literal

from testbed.planning import Policy

#: What a swap under way makes wait: a request gives way only to one that counts at least as much.
RANKS = {"period": 0, "network": 1, "forced": 2}


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """Why a plan is considered: `period`, `network` (it was changed) or `forced` (by `policy`, whatever it saves).

    `member`: the plan is for one `joins` more. `dropped` asks for nothing: it puts on record `why` a plan that was
    adopted will not come into force.
    """

    reason: Literal["period", "network", "forced", "member", "dropped"]
    policy: Policy | None = None
    why: str = ""
    joins: str = ""


class PlanRequests:
    """Requests in the order in which they came; those that were deferred come when they are asked for again."""

    def __init__(self) -> None:
        self._queue: deque[PlanRequest] = deque()
        self._deferred: PlanRequest | None = None
        self._comers: list[str] = []

    @property
    def empty(self) -> bool:
        """Whether none is to be considered now."""
        return not self._queue

    def ask(self, request: PlanRequest) -> None:
        """Have a plan considered once those that were asked for before are."""
        self._queue.append(request)

    def take(self) -> PlanRequest:
        """The next request; IndexError when there is none."""
        return self._queue.popleft()

    def defer(self, request: PlanRequest) -> None:
        """Have it wait for the swap under way. It will be judged by the view of that time, so one is enough."""
        if request.joins:
            self._comers.append(request.joins)
        elif self._deferred is None or RANKS[request.reason] >= RANKS[self._deferred.reason]:
            self._deferred = request

    def ask_deferred(self) -> None:
        """The swap is over: what waited for that is asked again."""
        if self._deferred is not None:
            self.ask(self._deferred)
            self._deferred = None
        comers, self._comers = self._comers, []
        for member in comers:
            self.ask(PlanRequest("member", joins=member))

    def forget(self, member: str) -> None:
        """A member was to come, and is gone."""
        self._comers = [comer for comer in self._comers if comer != member]
        self._queue = deque(request for request in self._queue if request.joins != member)
