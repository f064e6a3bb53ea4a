"""The controller's service: lets members join, passes their messages to a coordinator, and carries out its actions.

waiting --all joined--> running --all said goodbye--> done
    `-------------------------`---- anything else --> failed      (the other members are told to stop)

There are two coordinators: one for all-reduce in rounds, one for gossip.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from testbed.api.requests import Request, Stop
from testbed.controller.allreduce.coordinator import AllReduceCoordinator
from testbed.controller.gossip.coordinator import GossipCoordinator
from testbed.controller.model.actions import (
    Action,
    After,
    Announce,
    Background,
    Contradiction,
    Fail,
    JoinRefused,
    Tell,
    TellAll,
)
from testbed.controller.model.clocks import SYSTEM, Clocks
from testbed.controller.model.coordinator import Coordinator
from testbed.controller.model.spec import ControllerSpec
from testbed.controller.outcome import ControlledRun
from testbed.controller.run_records import ReportLog
from testbed.controller.server.member_server import STOPPED, MemberServer, TcpEndpoint
from testbed.errors import ending_of
from testbed.planning import Pair, PhysicalLink
from testbed.protocol import ControlMessage, Hello, Rejoin

log = logging.getLogger(__name__)

#: Seconds that a member may take to read its last message.
FLUSH_S = 2.0


def coordinator_of(spec: ControllerSpec, out: Path, clocks: Clocks) -> Coordinator:
    """Return the coordinator for a spec. `out` is the run's directory."""
    if spec.graph is not None:
        return GossipCoordinator(spec, spec.graph, clocks)
    if spec.planning is not None:
        return AllReduceCoordinator(spec, spec.planning, out, clocks)
    raise ValueError("the spec has neither `planning` nor `graph`: give one of them")


class ControllerService(ControlledRun):
    """The controller of one training. Everything happens on one event loop.

    Args:
        sockets: The folder of the members' folders, each with a Unix socket.
        tcp: The address for members of other machines, or None.
        takes_next: Another training may follow, with the same server.
        before: The training before this one, or None.
        most_report_bytes: The limit of each member's recorded reports; None derives it from the rounds: see ReportLog.
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
        most_report_bytes: int | None = None,
    ) -> None:
        super().__init__(spec, coordinator_of(spec, out, clocks))
        #: Set at each change of the state. The one task that waits for it clears it before it looks at the state.
        self.changes = asyncio.Event()
        self.finished = asyncio.Event()
        self.closed = False
        self._out = out
        elastic = spec.elastic is not None
        # In an elastic all-reduce other members may request means from a member after its Goodbye; in gossip not.
        stays = elastic and spec.graph is None
        self._follows = before is not None  # `before` itself would keep all earlier trainings in memory
        self.server: MemberServer = (
            MemberServer(sockets, self.coordinator.identities, self, tcp, elastic, stays, takes_next)
            if before is None
            else before.server
        )
        self._reports = ReportLog(out, spec.rounds, clocks, most_report_bytes)
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Make the first plan if there are plans, and listen for members.

        The controller waits for members without a limit: its owner knows when they were started, and may stop it.

        Raises:
            PolicyError: The first view has no plan.
        """
        self.coordinator.start()
        if self._follows:
            self.server.begin_next(self.coordinator.identities, self)
        else:
            await self.server.start()
        log.info("waiting for %d members", len(self.spec.members))

    async def close(self, keep_server: bool = False) -> None:
        """Stop the connected members, and complete the run's directory.

        With `keep_server` the server goes on listening, for the next training.
        """
        if self.state == "running":
            self.fail(STOPPED)
        elif not self.finished.is_set():  # no training has begun that could fail
            log.info("%s while it waited for members", STOPPED)
            self.server.stop_all(STOPPED)
            self._end("waiting")
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.server.flush(FLUSH_S)
        if not keep_server:
            await self.server.close()
        self.closed = True
        self.changes.set()
        self.coordinator.close()
        self._reports.close()

    def fail(self, reason: str) -> None:
        """End the run as failed, and tell the members to stop. Only the first reason counts."""
        if self.finished.is_set():
            return
        self.failure = reason
        log.error("the run failed: %s", reason)
        self.server.stop_all(reason)
        self._end("failed")

    # Messages of members

    def joined(self, hello: Hello, rejoin: Rejoin | None = None) -> None:
        """Let a member join, or take it back if it reconnects (`rejoin`). The run begins with the last of the members.

        Raises:
            Contradiction: The member comes too late, or its state is impossible.
        """
        if self.finished.is_set():
            ending = self.failure or (STOPPED if self.state == "waiting" else self.state)
            raise JoinRefused(f"{hello.member!r} came after the run was over ({ending})")
        if rejoin is not None and self._follows and self.state == "waiting":
            raise JoinRefused(
                f"{hello.member!r} reconnected to a training that is over; start it again for the next one"
            )
        with self._handling(f"{hello.member}'s hello"):
            if rejoin is not None:
                self._rejoin(hello, rejoin)
            elif self.state == "running":
                self._carry_out(self.coordinator.join(hello))
            self.hellos[hello.member] = hello
            log.info("%s joined (%d of %d)", hello.member, len(self.hellos), len(self.spec.members))
            if len(self.hellos) == len(self.spec.members) and self.state == "waiting":
                self.state = "running"
                self._carry_out(self.coordinator.begin(self.hellos))
            self.changes.set()

    def received(self, message: ControlMessage) -> None:
        """Pass a member's message to the coordinator. Raises Contradiction if it is impossible."""
        if self.closed:
            return  # members send until they have read their Stop
        with self._handling(f"a {message.kind} of {getattr(message, 'member', 'nobody')}"):
            self._carry_out(self.coordinator.receive(message))
            self._reports.add(message)

    def died(self, member: str, why: str, for_good: bool) -> None:
        """Pass the end of a member's connection, or its exclusion (`for_good`), to the coordinator."""
        log.warning("%s is excluded: %s" if for_good else "lost the connection to %s: %s", member, why)
        with self._handling(f"the {'exclusion' if for_good else 'end'} of {member}, {why}"):
            self._carry_out(self.coordinator.died(member, why, for_good))

    def _rejoin(self, hello: Hello, rejoin: Rejoin) -> None:
        """Take back a reconnected member. For a restarted controller the run then counts as begun.

        Members that connected to the restarted controller without a state join the run then.
        """
        actions = list(self.coordinator.rejoin(hello, rejoin))
        waiting = list(self.hellos.values()) if self.state == "waiting" else []
        self.state = "running"
        self._carry_out(actions)
        for other in waiting:
            if other.member != hello.member:
                self._carry_out(self.coordinator.join(other))

    # Requests of the run and of users

    def change_network(self, links: Mapping[str, PhysicalLink], routes: Mapping[Pair, tuple[str, ...]]) -> None:
        """Use another emulated network from now on, and replan at once if needed.

        Raises:
            ViewError: Its links and routes contradict each other.
        """
        self.coordinator.change_network(links, routes)
        self._carry_out(())

    def do(self, request: Request) -> None:
        """Carry out a user's request.

        Raises:
            ValueError: The request can't be carried out: see `Coordinator.do`.
        """
        match request:
            case Stop():
                self.fail(request.reason)
            case _:
                self._carry_out(self.coordinator.do(request))

    # Actions of the coordinator

    def _carry_out(self, actions: Iterable[Action]) -> None:
        """Carry out an event's actions and those that had to wait for it. All are decided before the first is done."""
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
                self.changes.set()
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
        """Fail the run on an error of a task, so that no member is left waiting."""
        self._tasks.discard(task)
        if task.cancelled() or (error := task.exception()) is None:
            return
        self._fail_by(error, "an action")

    # Errors of the controller itself

    @contextmanager
    def _handling(self, event: str) -> Iterator[None]:
        """End the run on any error but a Contradiction; `event` is for the text of the failure.

        The member that is connected at the moment must not be cut off for a fault of the controller, and the other
        members must not wait for work that was not done.
        """
        try:
            yield
        except Contradiction:
            raise
        except Exception as error:
            self._fail_by(error, event)

    def _fail_by(self, error: BaseException, event: str) -> None:
        if isinstance(error, OSError):  # the disk that records are written to
            self.fail(f"the run can't be recorded: {ending_of(error)[1]}")
            return
        log.error("internal error of the controller while it handled %s", event, exc_info=error)
        self.fail(f"internal error of the controller while it handled {event}: {error!r}; its log has the traceback")

    # The end

    def _end(self, state: Literal["waiting", "done", "failed"]) -> None:
        """End the run in its last state: `waiting` if the controller was stopped before all members had joined."""
        self.state = state
        self.server.over = True
        self.coordinator.end()
        self.write_final(self._out / "final.json")
        self.finished.set()
        self.changes.set()
