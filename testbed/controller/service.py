"""The controller's life: lets the members in, passes on what they say, and carries out what their coordinator asks for.

waiting --all joined--> running --all said goodbye--> done
    `-------------------------`---- anything else --> failed      (the others are told to stop)

A coordinator decides what members do together: one for those that reduce in rounds, one for those that gossip.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

from testbed.api.requests import Request, Stop
from testbed.controller.allreduce.coordinator import AllReduceCoordinator
from testbed.controller.gossip.coordinator import GossipCoordinator
from testbed.controller.model.actions import Action, After, Announce, Background, Fail, Tell, TellAll
from testbed.controller.model.clocks import SYSTEM, Clocks
from testbed.controller.model.contradiction import JoinRefused, own_errors
from testbed.controller.model.coordinator import Coordinator
from testbed.controller.model.spec import ControllerSpec
from testbed.controller.outcome import State, status, write_final
from testbed.controller.report_log import ReportLog
from testbed.controller.server.member_server import MemberServer, TcpEndpoint
from testbed.planning import Pair, PhysicalLink
from testbed.protocol import ControlMessage, Hello, Rejoin

log = logging.getLogger(__name__)

#: How long a member may take to accept its last message.
FLUSH_S = 2.0


class ChangeSignal:
    """A number that grows with each change, for any number of tasks to wait for."""

    def __init__(self) -> None:
        self._number = 1
        self._changed = asyncio.Event()

    def announce(self) -> None:
        """Something changed: those who wait go on."""
        self._number += 1
        self._changed.set()
        self._changed = asyncio.Event()

    async def wait(self, seen: int) -> int:
        """Wait until something changed since `seen` (what this returned before; 0 at first); the newest number."""
        while self._number == seen:
            await self._changed.wait()
        return self._number


def coordinator_of(spec: ControllerSpec, out: Path, clocks: Clocks) -> Coordinator:
    """The one for what members do; `out` is the run's directory."""
    if spec.graph is not None:
        return GossipCoordinator(spec, spec.graph, clocks)
    if spec.planning is not None:
        return AllReduceCoordinator(spec, spec.planning, out, clocks)
    raise ValueError("members have neither plans to reduce by nor a graph to gossip over")


class ControllerService:
    """One run's controller. Everything happens on one event loop; `out` is the run's directory.

    Members come to the Unix sockets in the folder `sockets`, a folder for each member in it, or over `tcp`
    where that is given, all to `server`. `hellos` are what they said last as they came.
    """

    def __init__(
        self,
        spec: ControllerSpec,
        sockets: Path,
        out: Path,
        tcp: TcpEndpoint | None = None,
        clocks: Clocks = SYSTEM,
        takes_next: bool = False,
        before: ControllerService | None = None,
    ) -> None:
        """Prepare a training. With `takes_next` another may follow, which is given this one as `before`."""
        self.spec = spec
        self.coordinator = coordinator_of(spec, out, clocks)
        self.state: State = "waiting"
        self.failure = ""
        self.hellos: dict[str, Hello] = {}
        self.changes = ChangeSignal()
        self.finished = asyncio.Event()
        self.closed = False
        self._out = out
        elastic = spec.elastic is not None
        # Members of an elastic all-reduce may be asked for means after their Goodbye; members that gossip are not.
        stays = elastic and spec.graph is None
        self._before = before
        self.server: MemberServer = (
            MemberServer(sockets, self.coordinator.identities, self, tcp, elastic, stays, takes_next)
            if before is None
            else before.server
        )
        self._reports = ReportLog(out, spec.rounds, clocks)
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Listen for members, with a first plan if they go by one. PolicyError when the first view has none.

        How long to wait for members is for the controller's owner to say: it knows when they were started.
        """
        self.coordinator.start()
        if self._before is not None:
            self.server.begin_anew(self.coordinator.identities, self)
        else:
            await self.server.start()
        log.info("waiting for %d members", len(self.spec.members))

    async def close(self, keep_server: bool = False) -> None:
        """Stop the members that are still there, and leave the run's directory complete. The server goes on listening
        with `keep_server`, for the next training."""
        if self.state in ("waiting", "running"):
            self.fail("the controller was ended")
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.server.flush(FLUSH_S)
        if not keep_server:
            await self.server.close()
        self.closed = True
        self.changes.announce()
        self.coordinator.close()
        self._reports.close()

    def fail(self, reason: str) -> None:
        """The run can't go on: tell the members to stop. Only the first reason counts."""
        if self.state in ("done", "failed"):
            return
        self.failure = reason
        log.error("failed: %s", reason)
        self.server.stop_all(reason)
        self._end("failed")

    # What members say

    def joined(self, hello: Hello, rejoin: Rejoin | None = None) -> None:
        if self.state in ("done", "failed"):
            raise JoinRefused(f"{hello.member!r} comes when the run is over: {self.failure or 'done'}")
        if rejoin is not None and self._before is not None and self.state == "waiting":
            raise JoinRefused(f"{hello.member!r} returns to a training that is over; start it anew for the next one")
        with own_errors(f"{hello.member}'s hello", self.fail):
            if rejoin is not None:
                self._came_back(hello, rejoin)
            elif self.state == "running":
                self._carry_out(self.coordinator.comes(hello))
            self.hellos[hello.member] = hello
            log.info("%s joined (%d of %d)", hello.member, len(self.hellos), len(self.spec.members))
            if len(self.hellos) == len(self.spec.members) and self.state == "waiting":
                self.state = "running"
                self._carry_out(self.coordinator.begin(self.hellos))
            self.changes.announce()

    def heard(self, message: ControlMessage) -> None:
        with own_errors(f"a {message.kind} of {getattr(message, 'member', 'nobody')}", self.fail):
            self._carry_out(self.coordinator.receive(message))
            self._reports.add(message)

    def died(self, member: str, why: str) -> None:
        log.warning("%s: %s", member, why)
        with own_errors(f"the end of {member}, {why}", self.fail):
            self._carry_out(self.coordinator.died(member, why))

    def excluded(self, member: str, why: str) -> None:
        log.warning("%s is no longer heard: %s", member, why)
        with own_errors(f"the exclusion of {member}, {why}", self.fail):
            self._carry_out(self.coordinator.died(member, why, for_good=True))

    def _came_back(self, hello: Hello, rejoin: Rejoin) -> None:
        """A member found its controller again. One that was started anew takes the run for begun."""
        actions = list(self.coordinator.came_back(hello, rejoin))
        self.state = "running"
        self._carry_out(actions)

    # What the run asks for

    def change_network(self, links: Mapping[str, PhysicalLink], routes: Mapping[Pair, tuple[str, ...]]) -> None:
        """The underlay is another one now: look at it at once. ViewError when it contradicts itself."""
        self.coordinator.change_network(links, routes)
        self._carry_out(())

    def do(self, request: Request) -> None:
        """Carry out what people ask for.

        Raises:
            ValueError: The members can't do that: see `Coordinator.do`.
        """
        match request:
            case Stop():
                self.fail(request.reason)
            case _:
                self._carry_out(self.coordinator.do(request))

    def status(self) -> dict[str, Any]:
        """The state in short."""
        return status(self)

    # What the coordinator asks for

    def _carry_out(self, actions: Iterable[Action]) -> None:
        """An event's actions, all of them decided before the first is done, and what had to wait for the event."""
        for action in list(actions):
            self._do(action)
        for action in list(self.coordinator.proceed()):
            self._do(action)
        if self.state == "running" and self.coordinator.over:
            for action in list(self.coordinator.finish()):
                self._do(action)
            if self.state == "running":
                self._end("done")

    def _do(self, action: Action) -> None:
        match action:
            case Tell(member, message):
                self.server.send(member, message)
            case TellAll(message):
                self.server.send_all(message)
            case After():
                self._start(self._wait(action))
            case Background():
                self._start(self._work(action))
            case Announce():
                self.changes.announce()
            case Fail(reason):
                self.fail(reason)

    async def _wait(self, action: After) -> None:
        await asyncio.sleep(action.seconds)
        if self.state == "running":
            self._carry_out(action.then())

    async def _work(self, action: Background) -> None:
        self._carry_out(action.then(await asyncio.to_thread(action.work)))

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        """An error of ours must not leave the members waiting."""
        self._tasks.discard(task)
        if task.cancelled() or (error := task.exception()) is None:
            return
        if isinstance(error, OSError):  # of the disk that is written to
            self.fail(f"the run can't be recorded: {error}")
            return
        log.error("the controller broke", exc_info=error)
        self.fail(f"the controller broke: {error!r}")

    # The end

    def _end(self, state: Literal["done", "failed"]) -> None:
        self.state = state
        self.server.over = True
        self.coordinator.end()
        write_final(self._out / "final.json", self)
        self.finished.set()
        self.changes.announce()
