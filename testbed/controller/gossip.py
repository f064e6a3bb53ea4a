"""A run whose members train without a centre, as the controller sees it: iterations, the graph, who dies and who comes.

a member dies     Died to the others, who settle its tokens and go on over the graph that is left
a member comes    when no other swap of the graph is under way, one that takes it in (see TopologyChanges)
"""

from __future__ import annotations

import logging
import time
from dataclasses import asdict, replace
from math import inf
from typing import Protocol

from testbed.controller.iteration_log import IterationLog
from testbed.controller.membership import Membership, MembershipEvent
from testbed.controller.spec import ControllerSpec, GossipGraph
from testbed.controller.topology_changes import TopologyChanges
from testbed.plan import Plan
from testbed.planning.graphs import GraphError, Violation
from testbed.protocol import Died, Hello, Message, Place, Promised, Report, Stop

log = logging.getLogger(__name__)


class Host(Protocol):
    """What the controller is and does for this."""

    members: Membership

    @property
    def plan(self) -> Plan:
        """The plan in force, which members are told though they do not go by it."""

    def send(self, member: str, message: Message) -> None:
        """Send to a member that is there."""

    def fail(self, reason: str) -> None:
        """The run can't go on."""


class Decentralized:
    """Follows the members' `iterations`, which fail the run when they break a bound, and has them change their graph.

    `circle` is the graph they begin in, `passages` say who has left and come.
    """

    def __init__(self, circle: GossipGraph, spec: ControllerSpec, host: Host) -> None:
        self.iterations = IterationLog(spec.members, circle)
        self.regraph = TopologyChanges(circle, spec.jobs, self.iterations, host.send, self._welcome)
        self.survives = circle.survives
        self.passages: list[MembershipEvent] = []
        self._spec = spec
        self._host = host
        self._comers: dict[str, tuple[str, int]] = {}

    @property
    def present(self) -> frozenset[str]:
        """Who takes part: those that were buried do not."""
        return frozenset(self.iterations.members)

    # What members say

    def reported(self, report: Report) -> None:
        """A member has entered an iteration. ValueError when it went back."""
        self._check(self.iterations.add(report))
        self._let_in()

    def promised(self, promised: Promised) -> None:
        """A member says where another graph could hold."""
        self.regraph.promised(promised)
        self._let_in()

    def left(self, member: str) -> None:
        """A member is done."""
        self.regraph.end(f"{member} is at its end")
        self._let_in()

    def comes(self, hello: Hello) -> None:
        """A member that was there before wants to take part again; it knows nothing of what it learned."""
        if hello.member in self.present:
            self.died(hello.member, "it was started anew")
        self._comers[hello.member] = hello.address
        self._let_in()

    def died(self, member: str, why: str) -> None:
        """Have the others go on without a member, if they still make a graph."""
        if self._comers.pop(member, None):
            self.regraph.gone(member)
            return
        try:
            self._check(self.iterations.bury(member, why))
        except GraphError as error:
            self._host.fail(f"{member}: {why}; the others can't go on without it: {error}")
            return
        iteration = self.iterations.deaths[-1]["iteration"]
        log.warning("%s died in iteration %d: %s", member, iteration, why)
        self.passages.append(MembershipEvent("left", member, time.time(), iteration, self._host.plan.epoch, why))
        for other in self.iterations.members:
            self._host.send(other, Died(member))
        self.regraph.gone(member)
        left, quorum = len(self.present), self._spec.elastic.quorum if self._spec.elastic else 0
        if left < quorum:
            self._host.fail(f"{member}: {why}; {left} members are left, and the quorum is {quorum}")
            return
        self._let_in()

    def settle(self) -> None:
        """All have come to their end: judge what they did until then."""
        self._check(self.iterations.settle(inf))

    # Members that come

    def _let_in(self) -> None:
        """The first of those who wait for it, if no other swap of the graph is under way."""
        if self.regraph.late:
            self._turn_away(self.regraph.late)
        if not self._comers or not self.regraph.idle:
            return
        member, address = next(iter(self._comers.items()))
        try:
            self.regraph.widen(member, address)
        except GraphError as error:
            self._turn_away(str(error))

    def _welcome(self, member: str, place: Place) -> None:
        """The others turn: it begins where they do."""
        log.info("%s comes in iteration %d", member, place.first)
        members, plan = self._host.members, self._host.plan
        members.roster[member] = self._comers.pop(member)
        self.passages.append(MembershipEvent("came", member, time.time(), place.first, plan.epoch, ""))
        job = replace(self._spec.jobs[member], assignment=asdict(place))
        self._host.send(member, members.welcome(member, job, plan))

    def _turn_away(self, why: str) -> None:
        for member in self._comers:
            self._host.send(member, Stop(f"could not be let in: {why}"))
        self._comers.clear()

    def _check(self, broken: list[Violation]) -> None:
        """Members that get further apart than their rules allow do not do what the run is about."""
        if broken:
            self._host.fail(f"the bound on the iteration gap is broken: {broken[0]}")
