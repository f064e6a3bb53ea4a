"""The controller: lets the members in, follows their rounds, and puts better plans in force.

    waiting --all joined--> running --all said goodbye--> done
        `-------------------------`---- anything else --> failed      (the others are told to stop)

One task at a time considers plans, so swaps never overlap: another begins when the last one is in force, or was
dropped because a member can't hold it. What is in force is for the members to say: they agreed on it.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from math import inf
from pathlib import Path
from typing import Any, Literal

from testbed.controller.decision import Decision, Rules, decide
from testbed.controller.iterations import IterationBook
from testbed.controller.knowledge import Knowledge
from testbed.controller.members import MemberServer
from testbed.controller.rounds import Round, RoundBook
from testbed.controller.spec import ControllerSpec
from testbed.controller.swaps import Swap
from testbed.plan import Plan
from testbed.planning import BoundError, Pair, PhysicalLink, Policy, PolicyError, View, predict
from testbed.planning.bound import bound
from testbed.planning.constraints import Constraints
from testbed.planning.graphs import Breach, GraphError
from testbed.protocol import Died, Goodbye, Held, Hello, Prepare, Report, Stop, Welcome
from testbed.telemetry.store import Records, write_json

log = logging.getLogger(__name__)

State = Literal["waiting", "running", "done", "failed"]

#: What a swap under way makes wait: a request gives way only to one that counts at least as much.
RANKS = {"period": 0, "network": 1, "forced": 2}

#: How long a member may take to accept its last message.
FLUSH_S = 2.0

#: Members say within the round's timeout whether they hold a plan; who says nothing for so much longer never will.
HOLD_MARGIN_S = 10.0


@dataclass(frozen=True, slots=True)
class Request:
    """Why a plan is considered: `period`, `network` (it was changed) or `forced` (by `policy`, whatever it saves).

    `dropped` asks for nothing: it puts on record `why` a plan that was adopted will not come into force.
    """

    reason: Literal["period", "network", "forced", "dropped"]
    policy: Policy | None = None
    why: str = ""


class Controller:
    """One run's controller. Everything happens on one event loop; `out` is the run's directory.

    Members come to the Unix `socket`, or over `tcp` (host, port) where that is given.
    """

    def __init__(self, spec: ControllerSpec, socket: Path, out: Path, tcp: tuple[str, int] | None = None) -> None:
        self.spec = spec
        self.state: State = "waiting"
        self.failure = ""
        self.swaps: list[Swap] = []
        self.book = RoundBook(spec.members)
        self.iterations = IterationBook(spec.members, spec.circle) if spec.circle else None
        self.policy = spec.make_policy()
        self.knowledge = Knowledge(spec.view)
        self.finished = asyncio.Event()
        self.changes = 1
        self.closed = False
        self.plan: Plan
        self._out = out
        self._secret = secrets.token_hex(16)
        self._members = MemberServer(socket, spec.members, spec.token, self, tcp)
        self._joined: dict[str, Hello] = {}
        self._goodbyes: dict[str, Goodbye] = {}
        self._requests: asyncio.Queue[Request] = asyncio.Queue()
        self._deferred: Request | None = None
        self._pending: Swap | None = None
        self._prepared: dict[int, Swap] = {}  # epochs newer than the one in force, the dropped ones too
        self._newest = 0
        self._declarations = 0
        self._considered_s = 0.0
        self._views = 0
        self._bound: tuple[Constraints, float | None] | None = None
        self._rounds_file = Records(out / "rounds.jsonl")
        self._decisions_file = Records(out / "decisions.jsonl")
        self._changed = asyncio.Event()

    async def start(self) -> None:
        """Make the first plan and listen for members. PolicyError when the first view has no plan.

        How long to wait for members is for the controller's owner to say: it knows when they were started.
        """
        now = time.time()
        view = self.knowledge.view(now)
        self.plan = self._plan(self.policy, view)
        self._store_plan(self.plan)
        first = Decision(True, "the first plan", None, predict(self.plan, view).seconds)
        await self._record(Request("period"), view, first, self.plan)
        await self._members.start()
        self._considering = asyncio.create_task(self._consider_requests())
        self._considering.add_done_callback(self._considering_ended)
        log.info("waiting for %d members", len(self.spec.members))

    async def close(self) -> None:
        """Stop the members that are still there, and leave the run's directory complete."""
        if self.state in ("waiting", "running"):
            self.fail("the controller was ended")
        self._considering.cancel()
        await asyncio.gather(self._considering, return_exceptions=True)
        await self._members.flush(FLUSH_S)
        await self._members.close()
        self.closed = True
        self._announce()
        self._rounds_file.close()
        self._decisions_file.close()

    async def wait_change(self, seen: int) -> int:
        """Wait until something changed since `seen` (what this returned before; 0 at first); the newest number."""
        while self.changes == seen:
            await self._changed.wait()
        return self.changes

    def _considering_ended(self, task: asyncio.Task[None]) -> None:
        """An error of ours must not leave the members waiting."""
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("the controller broke", exc_info=error)
            self.fail(f"the controller broke: {error!r}")

    # What members say

    def joined(self, hello: Hello) -> None:
        self._joined[hello.member] = hello
        log.info("%s joined (%d of %d)", hello.member, len(self._joined), len(self.spec.members))
        if len(self._joined) == len(self.spec.members) and self.state == "waiting":
            self.state = "running"
            roster = {member: one.address for member, one in self._joined.items()}
            for member in self.spec.members:
                job = asdict(self.spec.jobs[member])
                self._members.send(member, Welcome(job, roster, self.plan.to_json(), self._secret))
        self._announce()

    def reported(self, report: Report) -> None:
        if self.iterations is not None:
            self._check_gaps(self.iterations.add(report))
        else:
            done = self.book.add(report)
        self._rounds_file.append({"at_s": time.time(), **asdict(report)})
        if self.iterations is not None:
            self._announce()
        elif done is not None:
            self._round_done(done)

    def held(self, held: Held) -> None:
        swap = self._pending
        if swap is None or swap.plan.epoch != held.epoch:
            return  # dropped meanwhile
        if held.refusal:
            self._drop(swap, f"{held.member} can't hold it: {held.refusal}")
        else:
            swap.hold(held.member, time.time())
        self._announce()

    def left(self, goodbye: Goodbye) -> None:
        self._goodbyes[goodbye.member] = goodbye
        if goodbye.error:
            self.fail(f"{goodbye.member}: {goodbye.error}")
        self._end_if_all_left()
        self._announce()

    def _end_if_all_left(self) -> None:
        there = self.iterations.members if self.iterations else self.spec.members
        if self._goodbyes.keys() >= set(there) and self.state == "running":
            if self.iterations is not None:
                self._check_gaps(self.iterations.settle(inf))
            self._end("done")

    def _check_gaps(self, broken: list[Breach]) -> None:
        """Members that get further apart than their rules allow do not do what the run is about."""
        if broken:
            self.fail(f"the bound on the iteration gap is broken: {broken[0]}")

    def died(self, member: str, why: str) -> None:
        circle = self.spec.circle
        if self.iterations and circle and circle.survives and self.state == "running":
            self._bury(self.iterations, member, why)
        else:
            self.fail(f"{member}: {why}")

    def _bury(self, iterations: IterationBook, member: str, why: str) -> None:
        """Have the others go on without a member, if they still make a graph."""
        try:
            self._check_gaps(iterations.bury(member, why))
        except GraphError as error:
            self.fail(f"{member}: {why}; the others can't go on without it: {error}")
            return
        log.warning("%s died in iteration %d: %s", member, iterations.deaths[-1]["iteration"], why)
        self._members.send_all(Died(member))
        self._end_if_all_left()
        self._announce()

    # What the run asks for

    def fail(self, reason: str) -> None:
        """The run can't go on: tell the members to stop. Only the first reason counts."""
        if self.state in ("done", "failed"):
            return
        self.failure = reason
        log.error("failed: %s", reason)
        self._members.send_all(Stop(reason))
        self._end("failed")

    def change_network(self, links: Mapping[str, PhysicalLink], routes: Mapping[Pair, tuple[str, ...]]) -> None:
        """The underlay is another one now: look at it at once. ViewError when it contradicts itself."""
        self.knowledge.redeclare(links, routes, time.time())
        self._declarations += 1
        self._ask(Request("network"))

    def force(self, policy: Policy) -> None:
        """Go by `policy` from now on, and put its plan in force whatever it saves."""
        self.policy = policy
        self._ask(Request("forced", policy))

    def status(self) -> dict[str, Any]:
        """The state in short; times are Unix seconds, rates bit/s of frames as each edge's own flow got them."""
        last = self.book.last
        estimates = self.knowledge.estimates(time.time())
        return {
            "state": self.state,
            "failure": self.failure,
            "members": list(self.spec.members),
            "joined": sorted(self._joined),
            "left": sorted(self._goodbyes),
            "round": self.iterations.lowest if self.iterations else last.number if last else None,
            "rounds": self.spec.rounds,
            "epoch": self.plan.epoch,
            "pending_epoch": self._pending.plan.epoch if self._pending else None,
            "policy": self.plan.policy,
            "plan": self.plan.to_json(),
            "round_seconds": self.iterations.seconds if self.iterations else last.seconds if last else None,
            "metrics": self._newest_metrics(),
            "edges": [{"from": u, "to": v, **asdict(estimate)} for (u, v), estimate in estimates.items()],
            "swaps": [swap.to_json() for swap in self.swaps],
        }

    # Rounds

    def _round_done(self, done: Round) -> None:
        now = time.time()
        if (swap := self._prepared.get(done.epoch)) is not None:
            self._activate(swap, done)
        self.knowledge.observe(self.plan, done.samples(), now)
        due = now - self._considered_s >= self.spec.period_s
        if due and self._pending is None and self._requests.empty() and self._left() >= self.spec.dwell_rounds:
            self._ask(Request("period"))
        self._announce()

    def _activate(self, swap: Swap, done: Round) -> None:
        """The members go by a plan; perhaps one that was dropped when it was too late to take it back."""
        self.plan = swap.plan
        self._prepared = {epoch: other for epoch, other in self._prepared.items() if epoch > swap.plan.epoch}
        swap.activate(self.book.complete)
        log.info("epoch %d in force since round %d, pause %s ms", swap.plan.epoch, done.number, swap.pause_ms)
        if swap is self._pending:
            self._settle()
        else:
            self.swaps = sorted([*self.swaps, swap], key=lambda one: one.plan.epoch)

    def _drop(self, swap: Swap, why: str) -> None:
        """Give up a plan that can't be held everywhere. The next Prepare takes it back from who holds it."""
        log.warning("epoch %d dropped: %s", swap.plan.epoch, why)
        self.swaps.remove(swap)
        self._ask(Request("dropped", why=f"epoch {swap.plan.epoch} was dropped: {why}"))
        self._settle()

    def _drop_late(self, swap: Swap) -> None:
        if swap is self._pending and swap.held_s is None and self.state == "running":
            missing = sorted(set(self.spec.members) - swap.holders)
            self._drop(swap, f"{', '.join(missing)} did not say in time whether they hold it")
            self._announce()

    def _settle(self) -> None:
        """No swap is under way any more: go on with what waited for that."""
        self._pending = None
        if self._deferred is not None:
            self._ask(self._deferred)
            self._deferred = None

    def _left(self) -> int:
        """Rounds still to come, as the jobs have it."""
        return self.spec.rounds - len(self.book.complete)

    def _newest_metrics(self) -> dict[str, float]:
        if self.iterations is not None:
            return self.iterations.metrics()
        metrics: dict[str, float] = {}
        for done in self.book.complete[-50:]:
            metrics.update(done.metrics())
        return metrics

    # Plans

    def _ask(self, request: Request) -> None:
        if self.iterations is None:  # members without a centre go by no plan
            self._requests.put_nowait(request)

    async def _consider_requests(self) -> None:
        while True:
            request = await self._requests.get()
            if request.reason == "dropped":
                await self._record_dropped(request)
            elif self._pending is not None:
                self._defer(request)
            elif self.state in ("waiting", "running"):
                await self._consider(request)

    def _defer(self, request: Request) -> None:
        """Have it wait for the swap under way. It will be judged by the view of that time, so one is enough."""
        if self._deferred is None or RANKS[request.reason] >= RANKS[self._deferred.reason]:
            self._deferred = request

    def _plan(self, policy: Policy, view: View) -> Plan:
        return self.spec.dress(policy.plan(view), view)

    async def _propose(self, policy: Policy) -> tuple[View, Plan | PolicyError]:
        """The policy's plan, or why it has none, and the view it was made by: that of the newest declaration.

        The network may change while the policy thinks; what it thought of is of no use then.
        """
        while True:
            declarations = self._declarations
            now = self._considered_s = time.time()
            view = self.knowledge.view(now)
            try:
                proposed: Plan | PolicyError = await asyncio.to_thread(self._plan, policy, view)
            except PolicyError as error:
                proposed = error
            if declarations == self._declarations:
                return view, proposed

    async def _consider(self, request: Request) -> None:
        view, proposed = await self._propose(request.policy or self.policy)
        if isinstance(proposed, PolicyError):
            log.warning("no other plan: %s", proposed)
            await self._record(request, view, Decision(False, str(proposed), None, float("inf")), None)
            return
        rules = Rules(self.spec.margin, self.spec.dwell_rounds)
        stood = sum(done.epoch == self.plan.epoch for done in self.book.complete)
        decision = decide(self.plan, proposed, view, stood, rules, request.reason == "network")
        if request.reason == "forced":
            same = self.plan.shape() == proposed.shape()
            decision = Decision(not same, "forced", decision.current_s, decision.proposed_s)
        plan = None
        if decision.adopt and self.state in ("waiting", "running"):
            plan = self._adopt(proposed, request.reason if request.policy else f"{request.reason}: {decision.why}")
        await self._record(request, view, decision, plan)

    def _adopt(self, plan: Plan, reason: str) -> Plan:
        """Number `plan` and have the members prepare for it; until they are there it is simply the first plan."""
        if self.state == "running":
            self._newest += 1
        plan = plan.with_epoch(self._newest)
        self._store_plan(plan)
        log.info("epoch %d: %s (%s)", plan.epoch, plan.policy, reason)
        if self.state == "waiting":
            self.plan = plan
        else:
            swap = Swap(plan, reason, time.time(), self.book.last.number if self.book.last else 0)
            self._pending = self._prepared[plan.epoch] = swap
            self.swaps.append(swap)
            self._members.send_all(Prepare(plan.to_json()))
            answered_s = max(job.round_timeout_s for job in self.spec.jobs.values()) + HOLD_MARGIN_S
            asyncio.get_running_loop().call_later(answered_s, self._drop_late, swap)
        self._announce()
        return plan

    async def _record_dropped(self, request: Request) -> None:
        view = self.knowledge.view(time.time())
        seconds = predict(self.plan, view).seconds
        current_s = None if seconds == float("inf") else seconds
        await self._record(request, view, Decision(False, request.why, current_s, float("inf")), None)

    async def _record(self, request: Request, view: View, decision: Decision, plan: Plan | None) -> None:
        """Store the view and the decision made by it."""
        name = f"views/{self._views:04d}.json"
        self._views += 1
        write_json(self._out / name, view.to_json())
        self._decisions_file.append(
            {
                "at_s": view.at_s,
                "round": self.book.last.number if self.book.last else None,
                "reason": request.reason,
                "view": name,
                "policy": (request.policy or self.policy).name,
                "options": asdict(request.policy or self.policy),  # type: ignore[call-overload]
                "adopted": decision.adopt,
                "why": decision.why,
                "epoch": plan.epoch if plan else None,
                "current_s": decision.current_s,
                "proposed_s": decision.proposed_s if decision.proposed_s != float("inf") else None,
                "bound_s": await self._bound_of(view),
            }
        )

    async def _bound_of(self, view: View) -> float | None:
        """The bound's seconds; solved again only when a capacity changed. None when the view has no plan."""
        limits = Constraints.of(view)
        if self._bound is None or self._bound[0] != limits:
            try:
                seconds: float | None = (await asyncio.to_thread(bound, view)).seconds
            except BoundError:
                seconds = None
            self._bound = limits, seconds
        return self._bound[1]

    def _store_plan(self, plan: Plan) -> None:
        write_json(self._out / f"plans/{plan.epoch:04d}.json", plan.to_json())

    # The end

    def _end(self, state: Literal["done", "failed"]) -> None:
        self.state = state
        write_json(self._out / "final.json", self._final())
        self.finished.set()
        self._announce()

    def _final(self) -> dict[str, Any]:
        digests = {goodbye.digest for goodbye in self._goodbyes.values()}
        return {
            "state": self.state,
            "failure": self.failure,
            "rounds": self.iterations.lowest if self.iterations else len(self.book.complete),
            "gaps": self.iterations.to_json() if self.iterations else None,
            "epoch": self.plan.epoch,
            "identical": len(digests) == 1 and "" not in digests and len(self._goodbyes) == len(self.spec.members),
            "lost_updates": sum(done.lost for done in self.book.complete),
            "duplicated_updates": sum(done.duplicated for done in self.book.complete),
            "members": {
                member: {
                    "device": self._joined[member].device,
                    "rounds": goodbye.rounds,
                    "digest": goodbye.digest,
                    "metrics": dict(goodbye.metrics),
                    "error": goodbye.error,
                }
                for member, goodbye in self._goodbyes.items()
            },
            "swaps": [swap.to_json() for swap in self.swaps],
        }

    def _announce(self) -> None:
        """Let those who wait for a change go on."""
        self.changes += 1
        self._changed.set()
        self._changed = asyncio.Event()
