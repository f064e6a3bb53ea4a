"""The coordinator of members that gossip over a graph, each in its own iteration and without plans.

a member dies     Died to the others, which account for its tokens and go on over the remaining graph
a member joins    once no other change of the graph is under way, a change that includes it (see TopologyChanges)
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import asdict as fields_of
from itertools import chain
from math import inf
from typing import Any

from msgspec.structs import asdict, replace

from testbed.api.requests import ChangeGraph, Request
from testbed.controller.gossip.iteration_log import IterationLog
from testbed.controller.gossip.topology_changes import TopologyChanges
from testbed.controller.model.actions import Actions, After, Announce, Contradiction, Fail, JoinRefused, Tell, TellAll
from testbed.controller.model.clocks import SYSTEM, Clocks
from testbed.controller.model.coordinator import Coordinator, NotForMembers
from testbed.controller.model.spec import ControllerSpec, GossipGraph
from testbed.planning.gaps import Violation
from testbed.planning.graphs import GraphError
from testbed.protocol import (
    ControlMessage,
    Died,
    Goodbye,
    Hello,
    Job,
    Lost,
    NodeConfiguration,
    PromiseGraph,
    Report,
    Stop,
    Welcome,
)
from testbed.schema import brief

log = logging.getLogger(__name__)

#: Seconds from the first report of a loss to its judgement, in which the reports of both ends and of others come.
JUDGE_LOSS_S = 1.0


class GossipCoordinator(Coordinator):
    """Follows the members' iterations, fails the run when their gap breaks a bound, and changes their graph."""

    def __init__(self, spec: ControllerSpec, graph: GossipGraph, clocks: Clocks = SYSTEM) -> None:
        super().__init__(spec, clocks)
        self.iterations = IterationLog(spec.members, graph)
        self._topology = TopologyChanges(graph, spec.jobs, self.iterations, clocks)
        self._survives = graph.survives
        self._roster: dict[str, tuple[str, int]] = {}
        self._joining: dict[str, tuple[str, int]] = {}
        #: Reports of lost peers that are not judged yet: why, by the member that reports and its peer.
        self._losses: dict[tuple[str, str], str] = {}
        self._began_s = 0.0  # monotonic

    @property
    def present(self) -> frozenset[str]:
        """The members in the graph."""
        return frozenset(self.iterations.members)

    # Members

    def begin(self, hellos: Mapping[str, Hello]) -> Actions:
        """Begin the run: send each member its job and the addresses of its peers."""
        self.running, self._began_s = True, self.clocks.monotonic()
        self._roster = {member: hellos[member].address for member in self.spec.members}
        for member, job in self.spec.jobs.items():
            yield self._welcome(member, job)

    def join(self, hello: Hello) -> Actions:
        """Queue a member to join. If it was present or joining before, it was restarted and has lost its state.

        Raises:
            JoinRefused: The member has finished its training.
        """
        if hello.member in self.goodbyes:
            text = f"{hello.member!r} has finished its training; start it again when the other members are done"
            raise JoinRefused(text, rule="finished", member=hello.member)
        yield from self._remove_member(hello.member, "it was restarted")
        self._joining[hello.member] = hello.address

    def receive(self, message: ControlMessage) -> Actions:
        """Handle a member's report, promise or goodbye, or the loss of a peer. A removed member's messages are ignored.

        Raises:
            Contradiction: The message contradicts earlier ones or the state of the run.
        """
        member = getattr(message, "member", "")
        if member in self.spec.members and member not in self.present | self._joining.keys():
            log.info("ignored %s of %s, which was removed", type(message).__name__, member)
            return
        match message:
            case Report():
                self._check_report(message)
                entered_s = self.moment(message.finished_s)
                yield from self._check(self.iterations.add(message, entered_s))
                yield Announce()
            case PromiseGraph():
                configuration = yield from self._topology.promised(message)
                if configuration is not None:
                    yield self._admit(configuration)
            case Lost(_, peer, why) if self._survives and self.running and peer in self.present:
                if not self._losses:
                    yield After(JUDGE_LOSS_S, self._judge_losses)
                self._losses[member, peer] = why
            case Goodbye():
                yield from self._handle_goodbye(message)
                yield Announce()

    def died(self, member: str, why: str, for_good: bool = False) -> Actions:
        """Handle the end of a connection: the others go on without the member, or the run fails."""
        if self._survives and self.running:
            yield from self._remove_member(member, why)
            yield Announce()
        else:
            yield Fail(f"{member}: {why}")

    def proceed(self) -> Actions:
        """Begin a change of the graph for a member that waits to join, if no change is under way."""
        if not self.running:
            return
        if self._topology.closed_reason:
            yield from self._refuse_joining(dict.fromkeys(self._joining, self._topology.closed_reason))
        if self._joining and self._topology.idle:
            yield from self._prepare_join()

    def finish(self) -> Actions:
        """Judge the remaining iterations: all members have finished."""
        if broken := self.iterations.judge(inf):
            yield from self._check(broken)
        elif self.spec.elastic:
            yield TellAll(Stop("done"))

    def do(self, request: Request) -> Actions:
        """Carry out a ChangeGraph request. Raises NotForMembers for other requests, GraphError."""
        if not isinstance(request, ChangeGraph):
            raise NotForMembers("this run's members gossip over a graph; it takes ChangeGraph", request)
        if not self.running:
            raise GraphError(
                "the graph changes only while the members train: they have not begun, or are done", rule="no-graph"
            )
        return self._topology.prepare(request.kind)

    def _check_report(self, report: Report) -> None:
        """Check a report's names and iteration.

        Raises:
            Contradiction: It names a stranger, or no member can have entered that iteration.
        """
        self.check_names(report)
        if report.round > self.spec.rounds:
            text = f"it reported iteration {report.round}, and the run has {self.spec.rounds}"
            raise Contradiction(text, rule="beyond-end", member=report.member, round=report.round, epoch=report.epoch)

    def _judge_losses(self) -> Actions:
        """Remove members until no two are left that have lost each other, and tell each to stop.

        A member that is cut off loses all its neighbours in the graph, each of which loses it alone: the member that
        lost the largest share is removed first. Of two ends with the same share, the one that was reported first goes.
        """
        losses, self._losses = self._losses, {}
        while self.running:
            losses = {ends: why for ends, why in losses.items() if self.present.issuperset(ends)}
            lost: dict[str, set[str]] = {end: set() for end in (*(peer for _, peer in losses), *chain(*losses))}
            for member, peer in losses:
                lost[member].add(peer)
                lost[peer].add(member)
            if not lost:
                return
            share = {end: len(its) / len(self._topology.neighbours(end) | its) for end, its in lost.items()}
            gone = max(lost, key=lambda end: share[end])
            member, peer = next(ends for ends in losses if gone in ends)
            why = f"{member} and {peer} lost each other: {losses[member, peer]}"
            actions = list(self._remove_member(gone, why))
            yield from actions
            if any(isinstance(action, Fail) for action in actions):
                return
            stop = brief(f"the other members go on without this one: {why}")
            yield Tell(gone, Stop(stop, again=self.spec.elastic is not None))
            yield Announce()

    def _handle_goodbye(self, goodbye: Goodbye) -> Actions:
        member = goodbye.member
        if goodbye.error and self.spec.elastic and self.running:
            yield from self._remove_member(member, goodbye.error)
            return
        self.goodbyes[member] = goodbye
        yield from self._topology.close(f"{member} has finished its training")
        if goodbye.error:
            yield Fail(f"{member}: {goodbye.error}")

    def _remove_member(self, member: str, why: str) -> Actions:
        """Remove a lost member, and have the others go on if they still make a graph."""
        if self._joining.pop(member, None):
            yield from self._topology.died(member)
        if member not in self.present:
            return
        try:
            yield from self._check(self.iterations.remove(member, why))
        except GraphError as error:
            yield Fail(f"{member}: {why}; the other members can't go on without it: {error}")
            return
        iteration = self.iterations.deaths[-1]["iteration"]
        log.warning("%s died in iteration %d: %s", member, iteration, why)
        self.record_event("left", member, iteration, why=why)
        for other in self.iterations.members:
            yield Tell(other, Died(member))
        yield from self._topology.died(member)
        left, quorum = len(self.present), self.spec.elastic.quorum if self.spec.elastic else 0
        if left < quorum:
            yield Fail(f"{member}: {why}; {left} members are left, and the quorum is {quorum}")

    # Members that join

    def _prepare_join(self) -> Actions:
        """Begin a change of the graph for the first waiting member that makes a graph with the present members.

        Members before it wait longer: it may be the neighbour that they lack. Without such a member, all are refused.
        """
        refused: dict[str, str] = {}
        for member, address in self._joining.items():
            try:
                yield from self._topology.prepare_join(member, address)
                return
            except GraphError as error:
                refused[member] = self._topology.refusal(member, error)
        yield from self._refuse_joining(refused)

    def _admit(self, configuration: NodeConfiguration) -> Tell:
        """Return the Welcome of a member that joins in the iteration in which the others change to its graph."""
        member = self._topology.swaps[-1].joins
        log.info("%s joins in iteration %d", member, configuration.first)
        self._roster[member] = self._joining.pop(member)
        self.record_event("came", member, configuration.first)
        configuration = replace(configuration, elapsed_s=self.clocks.monotonic() - self._began_s)
        return self._welcome(member, replace(self.spec.jobs[member], assignment=asdict(configuration)))

    def _welcome(self, member: str, job: Job) -> Tell:
        return Tell(member, Welcome(job, self._roster, plan={}, keys=self.identities.keys(member)))

    def _refuse_joining(self, reasons: Mapping[str, str]) -> Actions:
        for member, why in reasons.items():
            yield Tell(member, Stop(brief(f"this member could not join: {why}")))
        self._joining.clear()

    def _check(self, broken: list[Violation]) -> Actions:
        """Fail the run if a bound on the iteration gap is broken."""
        if broken:
            yield Fail(f"the bound on the iteration gap is broken: {broken[0]}")

    # Progress

    def status(self) -> dict[str, Any]:
        """Return the newest iteration that all members have entered, and the newest metrics."""
        return {
            "round": self.iterations.lowest,
            "epoch": 0,
            "pending_epoch": None,
            "policy": None,
            "plan": None,
            "round_seconds": self.iterations.seconds,
            "metrics": self.iterations.metrics(),
            "estimates": {},
            "swaps": [],
        }

    def final(self) -> dict[str, Any]:
        """Return the iterations, the gaps between members, and the swaps of the graph."""
        return {
            "rounds": self.iterations.lowest,
            "gaps": self.iterations.to_json(),
            "graph_swaps": [fields_of(swap) for swap in self._topology.swaps],
            "epoch": 0,
            "lost_updates": 0,
            "duplicated_updates": 0,
            "swaps": [],
        }
