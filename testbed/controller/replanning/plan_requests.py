"""Requests to consider a plan, some of which are deferred: by the current swap, or because no plan can be made now."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Literal

from testbed.planning import Policy

#: The ranks of requests that are deferred: one of the same or a higher rank replaces the waiting one.
RANKS = {"period": 0, "network": 1, "forced": 2}


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """A request to consider a plan.

    Its reasons are: `period` (the time since the last one, or a link that fell), `network` (another network was
    declared), `forced` (a policy's plan is adopted whatever it saves), `member` (a member joins) and `dropped` (only a
    record: an adopted plan will not come into force).
    """

    reason: Literal["period", "network", "forced", "member", "dropped"]
    #: The policy of a forced plan.
    policy: Policy | None = None
    #: Why the adopted plan was dropped.
    why: str = ""
    #: The member that joins.
    joins: str = ""


class PlanRequests:
    """A queue of requests in the order of their arrival. Deferred requests return to it by `restore_deferred`."""

    def __init__(self) -> None:
        self._queue: deque[PlanRequest] = deque()
        self._deferred: PlanRequest | None = None
        self._joining: list[str] = []
        self._gone: set[str] = set()  # members that were removed and made no request since

    @property
    def empty(self) -> bool:
        """True if no request is to be considered now."""
        return not self._queue

    def add(self, request: PlanRequest) -> None:
        """Add a request to the end of the queue. One for the declared network is enough."""
        self._gone.discard(request.joins)
        if request.reason == "network" and request in self._queue:
            return
        self._queue.append(request)

    def take(self) -> PlanRequest:
        """Remove and return the next request.

        Raises:
            IndexError: the queue is empty.
        """
        return self._queue.popleft()

    def defer(self, request: PlanRequest) -> None:
        """Keep a request until the current swap ends, or the network or the policy changes.

        Beside the joining members one request of the highest rank is kept: once restored, it is considered under the
        view of that time, whenever it was made.
        """
        if request.joins:
            self._joining.append(request.joins)
        elif self._deferred is None or RANKS[request.reason] >= RANKS[self._deferred.reason]:
            self._deferred = request

    def restore_deferred(self) -> None:
        """Return the deferred requests to the queue."""
        if self._deferred is not None:
            self.add(self._deferred)
            self._deferred = None
        joining, self._joining = self._joining, []
        for member in joining:
            self.add(PlanRequest("member", joins=member))

    def is_withdrawn(self, request: PlanRequest) -> bool:
        """Return whether the member that was to join is gone, and made no request since."""
        return request.joins in self._gone

    def remove(self, member: str) -> None:
        """Remove the requests for a joining member that is gone."""
        self._gone.add(member)
        self._joining = [other for other in self._joining if other != member]
        self._queue = deque(request for request in self._queue if request.joins != member)
