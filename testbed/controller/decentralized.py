"""A run whose members train without a centre, as the controller sees it: iterations, the graph, and who dies."""

from __future__ import annotations

import logging
from math import inf
from typing import Protocol

from testbed.controller.iterations import IterationBook
from testbed.controller.regraph import Regraph
from testbed.controller.spec import Circle, ControllerSpec
from testbed.planning.graphs import Breach, GraphError
from testbed.protocol import Died, Message, Report

log = logging.getLogger(__name__)


class Host(Protocol):
    """What the controller does for this."""

    def send(self, member: str, message: Message) -> None:
        """Send to a member that is there."""

    def send_all(self, message: Message) -> None:
        """Send to every member that is there."""

    def fail(self, reason: str) -> None:
        """The run can't go on."""


class Decentralized:
    """Follows the members' `iterations`, which fail the run when they break a bound, and has them change their graph.

    `circle` is the graph they begin in.
    """

    def __init__(self, circle: Circle, spec: ControllerSpec, host: Host) -> None:
        self.iterations = IterationBook(spec.members, circle)
        self.regraph = Regraph(circle, spec.jobs, self.iterations, host.send)
        self.survives = circle.survives
        self._host = host

    @property
    def present(self) -> frozenset[str]:
        """Who takes part: those that were buried do not."""
        return frozenset(self.iterations.members)

    def reported(self, report: Report) -> None:
        """A member has entered an iteration. ValueError when it went back."""
        self._check(self.iterations.add(report))

    def bury(self, member: str, why: str) -> None:
        """Have the others go on without a member, if they still make a graph."""
        try:
            self._check(self.iterations.bury(member, why))
        except GraphError as error:
            self._host.fail(f"{member}: {why}; the others can't go on without it: {error}")
            return
        log.warning("%s died in iteration %d: %s", member, self.iterations.deaths[-1]["iteration"], why)
        self._host.send_all(Died(member))
        self.regraph.gone(member)

    def settle(self) -> None:
        """All have come to their end: judge what they did until then."""
        self._check(self.iterations.settle(inf))

    def _check(self, broken: list[Breach]) -> None:
        """Members that get further apart than their rules allow do not do what the run is about."""
        if broken:
            self._host.fail(f"the bound on the iteration gap is broken: {broken[0]}")
