"""The controller: lets the members in, follows what they do, and has better plans put in force.

waiting --all joined--> running --all said goodbye--> done
    `-------------------------`---- anything else --> failed      (the others are told to stop)

Planner          which plan is in force, and which is to follow it
Membership       who takes part, where members may go and come
Decentralized    instead of both, where members train without a centre
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

from testbed.controller import outcome
from testbed.controller.gossip import Decentralized
from testbed.controller.member_server import JoinRefused, MemberServer
from testbed.controller.membership import Membership
from testbed.controller.outcome import State
from testbed.controller.planner import Planner
from testbed.controller.round_log import RoundLog
from testbed.controller.spec import ControllerSpec
from testbed.controller.swaps import Swap
from testbed.plan import Plan
from testbed.planning import Pair, PhysicalLink, Policy
from testbed.planning.graphs import GraphError
from testbed.protocol import Arrived, Goodbye, Held, Hello, Holding, Lost, Message, Promised, Renew, Report, Stop
from testbed.telemetry.store import Records, write_json

log = logging.getLogger(__name__)

#: How long a member may take to accept its last message.
FLUSH_S = 2.0


class Controller:
    """One run's controller. Everything happens on one event loop; `out` is the run's directory.

    Members come to the Unix `socket`, or over `tcp` (host, port) where that is given. `hellos` and `goodbyes` are what
    they said last.
    """

    def __init__(self, spec: ControllerSpec, socket: Path, out: Path, tcp: tuple[str, int] | None = None) -> None:
        self.spec = spec
        self.state: State = "waiting"
        self.failure = ""
        self.hellos: dict[str, Hello] = {}
        self.goodbyes: dict[str, Goodbye] = {}
        self.finished = asyncio.Event()
        self.changes = 1
        self.closed = False
        self._out = out
        self._elastic = spec.elastic is not None
        self.planner = Planner(spec, self, out)
        leased = spec.elastic if spec.circle is None else None
        self.members = Membership(spec.members, spec.token, leased, self, self.planner)
        self.circle = Decentralized(spec.circle, spec, self) if spec.circle else None
        self._server = MemberServer(socket, spec.members, spec.token, self, tcp, self._elastic)
        self._rounds_file = Records(out / "rounds.jsonl")
        self._arrivals_file = Records(out / "arrivals.jsonl")
        self._changed = asyncio.Event()

    async def start(self) -> None:
        """Make the first plan and listen for members. PolicyError when the first view has no plan.

        How long to wait for members is for the controller's owner to say: it knows when they were started.
        """
        await self.planner.start()
        await self._server.start()
        log.info("waiting for %d members", len(self.spec.members))

    async def close(self) -> None:
        """Stop the members that are still there, and leave the run's directory complete."""
        if self.state in ("waiting", "running"):
            self.fail("the controller was ended")
        self.members.end()
        await self.planner.close()
        await self._server.flush(FLUSH_S)
        await self._server.close()
        self.closed = True
        self.announce()
        self._rounds_file.close()
        self._arrivals_file.close()

    async def wait_change(self, seen: int) -> int:
        """Wait until something changed since `seen` (what this returned before; 0 at first); the newest number."""
        while self.changes == seen:
            await self._changed.wait()
        return self.changes

    def announce(self) -> None:
        """Let those who wait for a change go on."""
        self.changes += 1
        self._changed.set()
        self._changed = asyncio.Event()

    # What the run asks for

    @property
    def plan(self) -> Plan:
        """The plan in force."""
        return self.planner.course.plan

    @property
    def swaps(self) -> list[Swap]:
        """The plans that followed the first one, and the one that is to be the next."""
        return self.planner.course.swaps

    @property
    def book(self) -> RoundLog:
        """The rounds so far."""
        return self.planner.book

    @property
    def considering(self) -> bool:
        """Whether a plan is being considered."""
        return self.planner.considering

    def status(self) -> dict[str, Any]:
        """The state in short."""
        return outcome.status(self)

    def change_network(self, links: Mapping[str, PhysicalLink], routes: Mapping[Pair, tuple[str, ...]]) -> None:
        """The underlay is another one now: look at it at once. ViewError when it contradicts itself."""
        self.planner.change_network(links, routes)

    def force(self, policy: Policy) -> None:
        """Go by `policy` from now on, and put its plan in force whatever it saves."""
        self.planner.force(policy)

    def change_graph(self, kind: str) -> None:
        """Have members that train without a centre go over to another graph; GraphError when they can't."""
        if self.circle is None or self.state != "running":
            raise GraphError("no members train without a centre here now")
        self.circle.regraph.begin(kind)

    def fail(self, reason: str) -> None:
        """The run can't go on: tell the members to stop. Only the first reason counts."""
        if self.state in ("done", "failed"):
            return
        self.failure = reason
        log.error("failed: %s", reason)
        self.send_all(Stop(reason))
        self._end("failed")

    # What members say

    def joined(self, hello: Hello) -> None:
        if self.state in ("done", "failed"):
            raise JoinRefused(f"{hello.member!r} comes when the run is over: {self.failure or 'done'}")
        if hello.standing:
            self._came_back(hello)
        elif self.state == "running":
            self._comes(hello)
        self.hellos[hello.member] = hello
        log.info("%s joined (%d of %d)", hello.member, len(self.hellos), len(self.spec.members))
        if len(self.hellos) == len(self.spec.members) and self.state == "waiting":
            self._begin()
        self.announce()

    def renewed(self, renew: Renew) -> None:
        self.members.renewed(renew.member)

    def lost(self, lost: Lost) -> None:
        if self.state == "running":
            self.members.lost(lost)

    def holding(self, holding: Holding) -> None:
        self.members.holding(holding)

    def promised(self, promised: Promised) -> None:
        if self.circle is not None:
            self.circle.promised(promised)

    def reported(self, report: Report) -> None:
        self.members.advanced(report.member)
        if self.circle is not None:
            self.circle.reported(report)
            self.announce()
        else:
            self.planner.reported(report)
        self._rounds_file.append({"at_s": time.time(), **asdict(report)})

    def arrived(self, arrived: Arrived) -> None:
        if self.circle is None:
            self.planner.arrived(arrived)
            self._arrivals_file.append({"at_s": time.time(), **asdict(arrived)})

    def held(self, held: Held) -> None:
        self.planner.held(held)

    def left(self, goodbye: Goodbye) -> None:
        if goodbye.error and self._elastic and self.state == "running":
            self._lose(goodbye.member, goodbye.error)
            self.announce()
            return
        self.goodbyes[goodbye.member] = goodbye
        if self.circle is not None:
            self.circle.left(goodbye.member)
        self.members.done(goodbye.member)
        if goodbye.error:
            self.fail(f"{goodbye.member}: {goodbye.error}")
        self._end_if_done()
        self.announce()

    def died(self, member: str, why: str) -> None:
        if self.circle is not None and self.circle.survives and self.state == "running":
            self._lose(member, why)
            self.announce()
        elif self._elastic and self.state == "running":
            self.members.hung_up(member)
            self.planner.not_come(member, why)
        else:
            self.fail(f"{member}: {why}")

    # Members, for those who decide about them

    def connected(self, member: str) -> bool:
        """Whether it is there."""
        return self._server.connected(member)

    def send(self, member: str, message: Message) -> None:
        """Send to a member that is there."""
        self._server.send(member, message)

    def send_all(self, message: Message) -> None:
        """Send to every member that is there."""
        self._server.send_all(message)

    def losing(self, gone: Mapping[str, str]) -> None:
        """The run goes on without them."""
        for member in gone:
            self.goodbyes.pop(member, None)
        self.planner.lose(gone)
        self._end_if_done()

    def _lose(self, member: str, why: str) -> None:
        """A member is gone, and the others may go on."""
        if self.circle is None:
            self.members.lose({member: why})
        else:
            self.circle.died(member, why)
            self._end_if_done()

    def _begin(self) -> None:
        """All members are there."""
        self.state = "running"
        self.members.roster = {member: hello.address for member, hello in self.hellos.items()}
        for member in self.spec.members:
            self.send(member, self.members.welcome(member, self.spec.jobs[member], self.plan))
        self.members.begin()

    def _came_back(self, hello: Hello) -> None:
        """It found its controller again; this one may have been started anew, and learns from it who there is."""
        try:
            plan = Plan.from_json(hello.standing["plan"])
            roster = roster_of(hello.standing["roster"])
            newest = int(hello.standing["newest"])
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise JoinRefused(f"{hello.member!r} does not say where it stands: {error!r}") from error
        begins = self.state == "waiting"
        self.planner.course.recover(plan, newest, begins)
        if begins:
            self.state = "running"
            self.members.recover(plan, roster)
            self.members.begin()
        self.members.came_back(hello)

    def _comes(self, hello: Hello) -> None:
        """A member, which may have been there before, wants to take part from now on."""
        if self.circle is not None:
            self.circle.comes(hello)
            return
        if hello.member in self.members.present:
            self.members.lose({hello.member: "it was started anew"})
        self.members.roster[hello.member] = hello.address
        self.planner.comes(hello.member)

    # The end

    def _end_if_done(self) -> None:
        there = self.circle.present if self.circle else self.members.present
        if self.state == "running" and self.goodbyes.keys() >= there:
            if self.circle is not None:
                self.circle.settle()
            if self._elastic:
                self.send_all(Stop("done"))
            if self.state == "running":
                self._end("done")

    def _end(self, state: Literal["done", "failed"]) -> None:
        self.state = state
        self.members.end()
        write_json(self._out / "final.json", outcome.final(self))
        self.finished.set()
        self.announce()


def roster_of(value: Mapping[str, Any]) -> dict[str, tuple[str, int]]:
    """Members and where they listen, as JSON has them."""
    return {str(member): (str(host), int(port)) for member, (host, port) in value.items()}
