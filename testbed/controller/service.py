"""The controller: lets the members in, follows their rounds, and puts better plans in force.

    waiting --all joined--> running --all said goodbye--> done
        `-------------------------`---- anything else --> failed      (the others are told to stop)

One task at a time considers plans, so swaps never overlap: another begins when the last one is in force, or was
dropped because a member can't hold it. What is in force is for the members to say: they agreed on it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from math import inf
from pathlib import Path
from typing import Any, Literal

from testbed.controller.decision import Decision, Standing
from testbed.controller.explore import Explorer
from testbed.controller.iterations import IterationBook
from testbed.controller.knowledge import Knowledge
from testbed.controller.ledger import Ledger
from testbed.controller.members import MemberServer, Refused
from testbed.controller.membership import Membership
from testbed.controller.proposal import Proposal, propose
from testbed.controller.regraph import Regraph
from testbed.controller.rounds import Round, RoundBook
from testbed.controller.spec import ControllerSpec
from testbed.controller.swaps import Swap
from testbed.plan import Plan
from testbed.planning import Pair, PhysicalLink, Policy, PolicyError, View, make_policy, predict
from testbed.planning.graphs import Breach, GraphError
from testbed.protocol import (
    Died,
    Goodbye,
    Held,
    Hello,
    Holding,
    Lost,
    Message,
    Prepare,
    Promised,
    Renew,
    Report,
    Stop,
)
from testbed.telemetry.store import Records, write_json

log = logging.getLogger(__name__)

State = Literal["waiting", "running", "done", "failed"]

#: What a swap under way makes wait: a request gives way only to one that counts at least as much.
RANKS = {"period": 0, "network": 1, "forced": 2}

#: How long a member may take to accept its last message.
FLUSH_S = 2.0

#: Members say within the round's timeout whether they hold a plan; who says nothing for so much longer never will.
HOLD_MARGIN_S = 10.0


#: What plans for those who are left when the run's own policy has none: it needs nothing but that they reach another.
LAST_RESORT = "mst"


@dataclass(frozen=True, slots=True)
class Request:
    """Why a plan is considered: `period`, `network` (it was changed) or `forced` (by `policy`, whatever it saves).

    `member`: the plan is for one `joins` more. `dropped` asks for nothing: it puts on record `why` a plan that was
    adopted will not come into force.
    """

    reason: Literal["period", "network", "forced", "member", "dropped"]
    policy: Policy | None = None
    why: str = ""
    joins: str = ""


class Controller:
    """One run's controller. Everything happens on one event loop; `out` is the run's directory.

    Members come to the Unix `socket`, or over `tcp` (host, port) where that is given.
    """

    def __init__(self, spec: ControllerSpec, socket: Path, out: Path, tcp: tuple[str, int] | None = None) -> None:
        self.spec = spec
        self.state: State = "waiting"
        self.failure = ""
        self.swaps: list[Swap] = []
        self.book = RoundBook(self._expected)
        self.iterations: IterationBook | None = None
        self.regraph: Regraph | None = None
        if spec.circle:
            self.iterations = IterationBook(spec.members, spec.circle)
            self.regraph = Regraph(spec.circle, spec.jobs, self.iterations, self.send)
        self.policy = spec.make_policy()
        self.knowledge = Knowledge(spec.view)
        self._explorer = Explorer()
        self.finished = asyncio.Event()
        self.changes = 1
        self.closed = False
        self.plan: Plan
        self._out = out
        self._elastic = spec.elastic is not None
        self.members = Membership(spec.members, spec.token, spec.elastic, self)
        self._server = MemberServer(socket, spec.members, spec.token, self, tcp, spec.elastic is not None)
        self._by_epoch: dict[int, frozenset[str]] = {}
        self._joined: dict[str, Hello] = {}
        self._goodbyes: dict[str, Goodbye] = {}
        self._requests: asyncio.Queue[Request] = asyncio.Queue()
        self._deferred: Request | None = None
        self._comers: list[str] = []
        self._pending: Swap | None = None
        self._prepared: dict[int, Swap] = {}  # epochs newer than the one in force, the dropped ones too
        self._newest = 0
        self._declarations = 0
        self._considered_s = 0.0
        self._promising = False
        self._busy = False
        self._rounds_file = Records(out / "rounds.jsonl")
        self._ledger = Ledger(out)
        self._changed = asyncio.Event()

    async def start(self) -> None:
        """Make the first plan and listen for members. PolicyError when the first view has no plan.

        How long to wait for members is for the controller's owner to say: it knows when they were started.
        """
        now = time.time()
        view = self._view(now)
        self.plan = self._plan(self.policy, view)
        self._store_plan(self.plan)
        first = Decision(True, "the first plan", None, predict(self.plan, view).seconds)
        await self._record(Request("period"), view, first, None, self.plan)
        await self._server.start()
        self._considering = asyncio.create_task(self._consider_requests())
        self._considering.add_done_callback(self._considering_ended)
        log.info("waiting for %d members", len(self.spec.members))

    async def close(self) -> None:
        """Stop the members that are still there, and leave the run's directory complete."""
        if self.state in ("waiting", "running"):
            self.fail("the controller was ended")
        self.members.end()
        self._considering.cancel()
        await asyncio.gather(self._considering, return_exceptions=True)
        await self._server.flush(FLUSH_S)
        await self._server.close()
        self.closed = True
        self._announce()
        self._rounds_file.close()
        self._ledger.close()

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

    @property
    def considering(self) -> bool:
        """Whether a plan is being considered."""
        return self._busy or not self._requests.empty()

    # What members say

    def joined(self, hello: Hello) -> None:
        if self.state in ("done", "failed"):
            raise Refused(f"{hello.member!r} comes when the run is over: {self.failure or 'done'}")
        if hello.standing:
            self._came_back(hello)
        elif self.state == "running":
            self._comes(hello)
        self._joined[hello.member] = hello
        log.info("%s joined (%d of %d)", hello.member, len(self._joined), len(self.spec.members))
        if len(self._joined) == len(self.spec.members) and self.state == "waiting":
            self.state = "running"
            self.members.roster = {member: one.address for member, one in self._joined.items()}
            for member in self.spec.members:
                self.send(member, self.members.welcome(member, self.spec.jobs[member], self.plan))
            self.members.begin()
        self._announce()

    def renewed(self, renew: Renew) -> None:
        self.members.renewed(renew.member)

    def lost(self, lost: Lost) -> None:
        if self.state == "running":
            self.members.lost(lost)

    def holding(self, holding: Holding) -> None:
        self.members.holding(holding)

    def promised(self, promised: Promised) -> None:
        if self.regraph is not None:
            self.regraph.promised(promised)

    def reported(self, report: Report) -> None:
        self.members.advanced(report.member)
        done = None
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
            self._give_up(swap, f"{held.member} can't hold it: {held.refusal}")
        else:
            swap.hold(held.member, time.time())
        self._announce()

    def left(self, goodbye: Goodbye) -> None:
        if goodbye.error and self._elastic and self.state == "running":
            self.members.lose({goodbye.member: goodbye.error})
            self._announce()
            return
        self._goodbyes[goodbye.member] = goodbye
        if self.regraph is not None:
            self.regraph.gone(goodbye.member)
        self.members.done(goodbye.member)
        if goodbye.error:
            self.fail(f"{goodbye.member}: {goodbye.error}")
        self._end_if_done()
        self._announce()

    def _check_gaps(self, broken: list[Breach]) -> None:
        """Members that get further apart than their rules allow do not do what the run is about."""
        if broken:
            self.fail(f"the bound on the iteration gap is broken: {broken[0]}")

    def died(self, member: str, why: str) -> None:
        circle = self.spec.circle
        if self.iterations and circle and circle.survives and self.state == "running":
            self._bury(self.iterations, member, why)
            return
        if not self._elastic or self.state != "running":
            self.fail(f"{member}: {why}")
            return
        self.members.hung_up(member)
        self.not_come(member, why)

    def _bury(self, iterations: IterationBook, member: str, why: str) -> None:
        """Have the others go on without a member, if they still make a graph."""
        try:
            self._check_gaps(iterations.bury(member, why))
        except GraphError as error:
            self.fail(f"{member}: {why}; the others can't go on without it: {error}")
            return
        log.warning("%s died in iteration %d: %s", member, iterations.deaths[-1]["iteration"], why)
        self._server.send_all(Died(member))
        if self.regraph is not None:
            self.regraph.gone(member)
        self._end_if_done()
        self._announce()

    # Members that go and come

    def send(self, member: str, message: Message) -> None:
        """Send to a member that is there."""
        self._server.send(member, message)

    def next_epoch(self) -> int:
        """One that no plan has."""
        self._newest += 1
        return self._newest

    def last_round(self) -> int | None:
        """The newest that all have reported."""
        return self.book.last.number if self.book.last else None

    async def plan_for(self, members: frozenset[str], epoch: int) -> Plan:
        """The policy's plan for these, or another's where it has none. PolicyError when they can't reach another."""
        view = self._view(time.time()).among(members)
        try:
            plan = await asyncio.to_thread(self._plan, self.policy, view)
        except PolicyError as error:
            log.warning("no plan of %s for %s: %s", self.policy.name, sorted(members), error)
            plan = self._plan(make_policy(LAST_RESORT, {}), view)
        return plan.with_epoch(epoch)

    def losing(self, gone: Mapping[str, str]) -> None:
        """Plans under way are given up, and rounds are complete without who is gone."""
        if self._pending is not None:
            self._drop(self._pending, "; ".join(f"{member} is gone" for member in gone))
        for member in gone:
            self._goodbyes.pop(member, None)
        self._by_epoch = {epoch: members - gone.keys() for epoch, members in self._by_epoch.items()}
        for done in self.book.recheck():
            self._round_done(done)
        self._end_if_done()

    def resumed(self, plan: Plan, why: str) -> None:
        """The plan is in force: those who are left had nothing to agree on."""
        self._store_plan(plan)
        swap = Swap(plan, why, time.time(), self.last_round() or 0, set(plan.members), time.time())
        self._prepared = {plan.epoch: swap}
        self.plan = plan
        self.swaps.append(swap)
        log.info("epoch %d: %s", plan.epoch, why)
        self._ask_deferred()
        self._announce()

    def _came_back(self, hello: Hello) -> None:
        """It found its controller again; this one may have been started anew, and learns from it who there is."""
        try:
            plan = Plan.from_json(hello.standing["plan"])
            roster = roster_of(hello.standing["roster"])
            self._newest = max(self._newest, int(hello.standing["newest"]))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise Refused(f"{hello.member!r} does not say where it stands: {error!r}") from error
        if self.state == "waiting":
            self.state = "running"
            self.plan = plan
            self.members.recover(plan, roster)
            self.members.begin()
        if plan.epoch > self.plan.epoch:
            self.plan = plan
        self._by_epoch[plan.epoch] = frozenset(plan.members)
        self.members.came_back(hello)

    def not_come(self, member: str, why: str) -> None:
        """It was to come, and is gone."""
        self._comers = [comer for comer in self._comers if comer != member]
        if self._pending is not None and self._pending.joins == member:
            self._give_up(self._pending, f"{member}: {why}")

    def _comes(self, hello: Hello) -> None:
        """A member, which may have been there before, wants to take part from now on."""
        if hello.member in self.members.present:
            self.members.lose({hello.member: "it was started anew"})
        self.members.roster[hello.member] = hello.address
        self._ask(Request("member", joins=hello.member))

    def _prepare(self, swap: Swap) -> None:
        """Have the members hold a plan; with one that joins, see Membership."""
        plan, joins = swap.plan, swap.joins
        if not joins:
            self._server.send_all(Prepare(plan.to_json()))
            return
        edges = self.knowledge.view(time.time()).edges
        swap.holders.add(joins)
        rates = {source: edge.rate_bps for (source, to), edge in edges.items() if to == joins}
        self.members.prepare(plan, joins, self.spec.jobs[joins], rates)

    @property
    def _there(self) -> frozenset[str]:
        """Who takes part: those that were buried do not."""
        return frozenset(self.iterations.members) if self.iterations else self.members.present

    def _expected(self, epoch: int) -> frozenset[str]:
        return self._by_epoch.get(epoch, self.members.present)

    def _view(self, now: float, joins: str = "") -> View:
        """What is known of the network, as far as it is that of those who are there."""
        view = self.knowledge.view(now)
        names = self.members.present | ({joins} if joins else set())
        return view if names == set(view.names) else view.among(names)

    def _end_if_done(self) -> None:
        if self.state == "running" and self._goodbyes.keys() >= self._there:
            if self.iterations is not None:
                self._check_gaps(self.iterations.settle(inf))
            if self._elastic:
                self._server.send_all(Stop("done"))
            self._end("done")

    # What the run asks for

    def fail(self, reason: str) -> None:
        """The run can't go on: tell the members to stop. Only the first reason counts."""
        if self.state in ("done", "failed"):
            return
        self.failure = reason
        log.error("failed: %s", reason)
        self._server.send_all(Stop(reason))
        self._end("failed")

    def change_graph(self, kind: str) -> None:
        """Have members that train without a centre go over to another graph; GraphError when they can't."""
        if self.regraph is None or self.state != "running":
            raise GraphError("no members train without a centre here now")
        self.regraph.begin(kind)

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
        """The state in short; times are Unix seconds, rates bit/s of frames as links were measured."""
        last = self.book.last
        estimates = self.knowledge.estimates(time.time())
        return {
            "state": self.state,
            "failure": self.failure,
            "members": list(self.spec.members),
            "joined": sorted(self._joined),
            "left": sorted(self._goodbyes),
            "passages": [asdict(passage) for passage in self.members.passages],
            "round": self.iterations.lowest if self.iterations else last.number if last else None,
            "rounds": self.spec.rounds,
            "epoch": self.plan.epoch,
            "pending_epoch": self._pending.plan.epoch if self._pending else None,
            "policy": self.plan.policy,
            "plan": self.plan.to_json(),
            "round_seconds": self.iterations.seconds if self.iterations else last.seconds if last else None,
            "metrics": self._newest_metrics(),
            "estimates": {name: estimate.to_json() for name, estimate in estimates.items()},
            "swaps": [swap.to_json() for swap in self.swaps],
        }

    # Rounds

    def _round_done(self, done: Round) -> None:
        now = time.time()
        if (swap := self._prepared.get(done.epoch)) is not None:
            self._activate(swap, done)
        self.knowledge.observe(done.samples(), now)
        self._explore(now)
        due = now - self._considered_s >= self.spec.period_s
        if due and self._pending is None and self._requests.empty() and self._left() >= self.spec.dwell_rounds:
            self._ask(Request("period"))
        self._announce()

    def _explore(self, now: float) -> None:
        """Have members probe what is unknown, if there will be another plan to profit from it."""
        if self._left() < self.spec.dwell_rounds:
            return
        present = self.members.present
        unknown = {
            name: [pair for pair in pairs if present.issuperset(pair)]
            for name, pairs in self.knowledge.unknown(now).items()
        }
        probes = self._explorer.probes(unknown, self.knowledge.route, now)
        for member, probe in probes.items():
            self._server.send(member, probe)

    def _activate(self, swap: Swap, done: Round) -> None:
        """The members go by a plan; perhaps one that was dropped when it was too late to take it back."""
        self.plan = swap.plan
        self._prepared = {epoch: other for epoch, other in self._prepared.items() if epoch > swap.plan.epoch}
        swap.activate(self.book.complete)
        log.info("epoch %d in force since round %d, pause %s ms", swap.plan.epoch, done.number, swap.pause_ms)
        if swap.joins:
            self.members.admit(swap.joins, swap.plan)
        if swap is self._pending:
            self._settle()
        elif swap not in self.swaps:
            self.swaps = sorted([*self.swaps, swap], key=lambda one: one.plan.epoch)

    def _drop(self, swap: Swap, why: str) -> None:
        """Give up a plan that can't be held everywhere. The next Prepare takes it back from who holds it, or a Halt."""
        log.warning("epoch %d dropped: %s", swap.plan.epoch, why)
        self.swaps.remove(swap)
        if swap.joins:
            self.members.done(swap.joins)
            self.send(swap.joins, Stop(f"could not be let in: {why}", again=True))
        self._ask(Request("dropped", why=f"epoch {swap.plan.epoch} was dropped: {why}"))
        self._settle()

    def _give_up(self, swap: Swap, why: str) -> None:
        """Drop a plan; one with a member more may be agreed on already, by members that would wait for that one."""
        self._drop(swap, why)
        if swap.joins:
            self.members.regroup(f"{swap.joins} does not come: {why}")

    def _drop_late(self, swap: Swap) -> None:
        if swap is self._pending and swap.held_s is None and self.state == "running":
            missing = sorted(set(swap.plan.members) - swap.holders)
            self._give_up(swap, f"{', '.join(missing)} did not say in time whether they hold it")
            self._announce()

    def _settle(self) -> None:
        """No swap is under way any more: go on with what waited for that."""
        self._pending = None
        self._ask_deferred()

    def _ask_deferred(self) -> None:
        if self._deferred is not None:
            self._ask(self._deferred)
            self._deferred = None
        comers, self._comers = self._comers, []
        for member in comers:
            self._ask(Request("member", joins=member))

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
            self._busy = False
            request = await self._requests.get()
            self._busy = True
            if request.reason == "dropped":
                await self._record_dropped(request)
            elif self._pending is not None or self.members.changing:
                self._defer(request)
            elif self.state in ("waiting", "running"):
                await self._consider(request)

    def _defer(self, request: Request) -> None:
        """Have it wait for the swap under way. It will be judged by the view of that time, so one is enough."""
        if request.joins:
            self._comers.append(request.joins)
        elif self._deferred is None or RANKS[request.reason] >= RANKS[self._deferred.reason]:
            self._deferred = request

    def _plan(self, policy: Policy, view: View) -> Plan:
        return self.spec.dress(policy.plan(view), view)

    async def _propose(self, request: Request) -> Proposal:
        """What comes of the request, by the view of the newest declaration.

        The network may change while the policy thinks; what it thought of is of no use then.
        """
        while True:
            declarations = self._declarations
            now = self._considered_s = time.time()
            view = self._view(now, request.joins)
            policy, changed = request.policy or self.policy, request.reason == "network"
            anyway = f"{request.joins} comes" if request.joins else "forced" if request.reason == "forced" else ""
            asked = (policy, self.spec, view, self.plan, self._standing(), changed, anyway)
            proposal = await asyncio.to_thread(propose, *asked)
            if declarations == self._declarations:
                return proposal

    def _standing(self) -> Standing:
        under = [done for done in self.book.complete if done.epoch == self.plan.epoch]
        return Standing(len(under), under[-1].seconds if under else None, self._promising)

    async def _consider(self, request: Request) -> None:
        if request.joins and (not self._server.connected(request.joins) or request.joins in self.members.present):
            return  # it went before its turn
        last = self.plan
        proposal = await self._propose(request)
        view, decision, plan = proposal.view, proposal.decision, None
        if self.members.changing or set(view.names) != self.members.present | ({request.joins} - {""}):
            self._ask(request)  # a member was lost meanwhile, and that may be mended already
            return
        self._promising = decision.promising and not decision.adopt
        if proposal.plan is None:
            log.warning("no other plan: %s", decision.why)
        elif decision.adopt and self.state in ("waiting", "running"):
            reason = request.reason if request.policy else f"{request.reason}: {decision.why}"
            plan = self._adopt(proposal.plan, reason, request.joins)
        await self._record(request, view, decision, last, plan)

    def _adopt(self, plan: Plan, reason: str, joins: str = "") -> Plan:
        """Number `plan` and have the members prepare for it; until they are there it is simply the first plan."""
        if self.state == "running":
            self._newest += 1
        plan = plan.with_epoch(self._newest)
        self._store_plan(plan)
        log.info("epoch %d: %s (%s)", plan.epoch, plan.policy, reason)
        if self.state == "waiting":
            self.plan = plan
        else:
            swap = Swap(plan, reason, time.time(), self.last_round() or 0, joins=joins)
            self._pending = self._prepared[plan.epoch] = swap
            self.swaps.append(swap)
            self._prepare(swap)
            answered_s = max(job.round_timeout_s for job in self.spec.jobs.values()) + HOLD_MARGIN_S
            asyncio.get_running_loop().call_later(answered_s, self._drop_late, swap)
        self._announce()
        return plan

    async def _record_dropped(self, request: Request) -> None:
        view = self._view(time.time())
        seconds = predict(self.plan, view).seconds
        current_s = None if seconds == float("inf") else seconds
        await self._record(request, view, Decision(False, request.why, current_s, float("inf")), self.plan, None)

    async def _record(
        self, request: Request, view: View, decision: Decision, last: Plan | None, adopted: Plan | None
    ) -> None:
        """Keep what was decided by the view while `last` was in force."""
        done = self.book.last.number if self.book.last else None
        policy = request.policy or self.policy
        estimates = self.knowledge.estimates(view.at_s)
        await self._ledger.record(view, policy, decision, request.reason, done, last, adopted, estimates)

    def _store_plan(self, plan: Plan) -> None:
        self._by_epoch[plan.epoch] = frozenset(plan.members)
        self._ledger.store(plan)

    # The end

    def _end(self, state: Literal["done", "failed"]) -> None:
        self.state = state
        self.members.end()
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
            "graph_swaps": [asdict(swap) for swap in self.regraph.swaps] if self.regraph else [],
            "epoch": self.plan.epoch,
            "identical": len(digests) == 1 and "" not in digests and self._goodbyes.keys() >= self.members.present,
            "passages": [asdict(passage) for passage in self.members.passages],
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


def roster_of(value: Mapping[str, Any]) -> dict[str, tuple[str, int]]:
    """Members and where they listen, as JSON has them."""
    return {str(member): (str(host), int(port)) for member, (host, port) in value.items()}
