"""An all-reduce group: leases, members that come and go, and the whole of its state. Times are monotonic.

    a member is gone    Abort to all others --all Holdings are in--> Reconfigure, under a plan without the member
    a connection broke  the same with all members, which make new connections under the plan
    a round starts again, under a plan that a planner adopted: the same with that plan
    members are cut off from the others, which are the most: they are gone, and join once they reach the others
    a member comes      prepare: a plan that includes it, agreed on like any other; admit: its first round is complete

If another member is lost before a reconfiguration has ended, the reconfiguration starts again under a newer epoch.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Literal

import networkx as nx

from testbed.controller.model.actions import Action, Actions, Tell
from testbed.controller.model.clocks import Clocks
from testbed.controller.model.identity import Identities
from testbed.controller.model.plan_history import PlanHistory
from testbed.controller.model.round_log import RoundLog
from testbed.controller.model.spec import ControllerSpec, Elasticity
from testbed.plan import Plan
from testbed.protocol import (
    Abort,
    Hello,
    Holding,
    Job,
    Lost,
    Prepare,
    Reach,
    Reconfigure,
    Rejoin,
    Stop,
    Unreached,
    Welcome,
)
from testbed.schema import brief

#: Checks within a lease. If a check comes late, the controller itself was stalled, and members get that time back.
CHECKS = 8

#: The most names of members in one reason.
SAID = 3


class Leases:
    """The leases of members, by which a lost member is found.

    A member is lost when one of these holds:

    - it has not renewed its lease for `lease_s` seconds;
    - its connection to the controller ended, and a peer's connection to it broke within the last lease;
    - the connections of more than half of the other members to it broke within the last lease;
    - more than a lease ago another member, which has finished no round since, reported that it waits for this one
      longer than a round takes; and this one waits for nobody itself. A member that joined has longer for its first
      round.

    A broken connection that was reported more than a lease ago proves nothing about a member that is alive: the member
    has renewed its lease since.

    Members that can open no connection to most others are lost, too: see `cut_off`.

    A member that said goodbye stays for the others until it is released. It may end its connections and its process, so
    it is lost only while another member waits for it.
    """

    def __init__(self, lease_s: float) -> None:
        self._lease_s = lease_s
        self._renewed_s: dict[str, float] = {}
        # Member that has finished no round since it joined -> the seconds for which others wait for it at most.
        self._start_s: dict[str, float] = {}
        self._disconnected: set[str] = set()
        self._leaving: set[str] = set()
        # By the peer and by the member that reports it: when the report came (monotonic seconds), and the reason.
        self._broken: dict[str, dict[str, tuple[float, str]]] = {}
        self._waits: dict[str, dict[str, tuple[float, str]]] = {}
        self._advanced: dict[str, float] = {}
        # By the member that reports: since when some peers are unreached (monotonic seconds), and which.
        self._unreached: dict[str, tuple[float, frozenset[str]]] = {}
        self._checked_s = 0.0

    @property
    def check_interval_s(self) -> float:
        """The interval of checks, in seconds; 0 without leases."""
        return self._lease_s / CHECKS

    def begin(self, members: Iterable[str], now: float, start_s: float = 0.0) -> None:
        """Give these members new leases from `now` on, and forget what others reported about them.

        Until a member's first round is over, others may wait `start_s` for it, if that is longer than a lease: it may
        still be fetching the state that it starts from.
        """
        self.extend_for_stall(now)
        for member in members:
            self._forget(member)
            self._renewed_s[member] = now
            if start_s:
                self._start_s[member] = start_s

    def end(self, member: str) -> None:
        """End the lease of a member that is gone or will not join. Its connections may end."""
        self._leaving.discard(member)
        self._start_s.pop(member, None)
        self._forget(member)

    def leave(self, member: str) -> None:
        """Record that a member said goodbye. Others may still wait for it, and it waits for nobody."""
        self._leaving.add(member)
        self._broken.pop(member, None)
        self._drop_reports_by(member)

    def renew(self, member: str, now: float) -> None:
        """Renew a member's lease."""
        if member in self._renewed_s:
            self._renewed_s[member] = now
            self._disconnected.discard(member)

    def disconnect(self, member: str) -> None:
        """Record that a member's connection to the controller ended. The member may reconnect within its lease."""
        if member in self._renewed_s:
            self._disconnected.add(member)

    def report_peer(self, member: str, peer: str, why: str, broken: bool, now: float) -> None:
        """Record that `member` lost its connection to `peer` (`broken`), or waits for it, longer than a round takes."""
        if not {member, peer} <= self._renewed_s.keys() or member in self._leaving:
            return
        if not broken:
            self._waits.setdefault(peer, {}).setdefault(member, (now, why))
        elif peer not in self._leaving:
            self._broken.setdefault(peer, {})[member] = (now, why)

    def report_unreached(self, member: str, peers: Collection[str], now: float) -> None:
        """Record to which peers a member could open no connection in the current round."""
        since_s, before = self._unreached.get(member, (now, ()))
        self._unreached[member] = since_s if before else now, frozenset(peers)

    def cut_off(
        self, present: Collection[str], pairs: Collection[tuple[str, str]], quorum: int, now: float
    ) -> dict[str, str]:
        """Return the present members that are cut off from the others, each with the reason.

        Two members can't reach each other if both report so, or one while the other has neither reported nor finished
        a round since. Members that are cut off are found once all have reported which peers they can't reach, or a
        lease after the first report. Of the parts into which the members fall, the largest goes on, or of equal ones
        the one with the first member. If all members are joined, but the plan has edges between members that can't
        reach each other, the member with the most such edges is cut off, the last one among equals. No member is cut
        off if the largest part is no quorum: then only a return of the path helps.
        """
        reports = {member: its for member, its in self._unreached.items() if member in present}
        dead = {
            frozenset((member, peer))
            for member, (at, peers) in reports.items()
            for peer in peers.intersection(present)
            if (member in reports[peer][1] if peer in reports else self._advanced.get(peer, at) <= at)
        }
        if not dead:
            return {}
        first_s = min(at for at, peers in reports.values() if peers)
        if now - first_s <= self._lease_s and not set(present) - self._leaving <= reports.keys():
            return {}
        members = sorted(present)
        joined = nx.Graph()
        joined.add_nodes_from(members)
        joined.add_edges_from(pair for pair in combinations(members, 2) if frozenset(pair) not in dead)
        parts: list[set[str]] = list(nx.connected_components(joined))
        if len(parts) == 1:  # each tree of the plan needs all of its edges
            used = {frozenset(pair) for pair in pairs} & dead
            if not used:
                return {}
            gone = max(reversed(members), key=lambda member: sum(member in pair for pair in used))
            parts = [{*members} - {gone}, {gone}]
        most = max(parts, key=len)
        if len(most) < quorum:
            return {}
        found: dict[str, str] = {}
        for part in parts:
            beyond = frozenset().union(*(pair for pair in dead if pair & part)) - part
            why = f"no connection can be opened between {_names(part)} and {_names(beyond)}"
            found |= dict.fromkeys(part - most, why)
        return found

    def advance(self, member: str, now: float) -> None:
        """Record that a member finished a round, and so waits for nobody."""
        self._advanced[member] = now
        self._start_s.pop(member, None)
        self._unreached.pop(member, None)
        for by in self._waits.values():
            by.pop(member, None)

    def extend_for_stall(self, now: float) -> float:
        """Extend all leases by the time for which the controller was stalled. To be called before `lost_members`.

        Returns:
            The seconds of the stall. No member could renew its lease or report progress in that time.
        """
        stall_s = max(now - self._checked_s - self.check_interval_s, 0.0)
        self._checked_s = now
        if stall_s:
            self._renewed_s = {member: min(at + stall_s, now) for member, at in self._renewed_s.items()}
            for by in self._waits.values():
                by.update({member: (min(at + stall_s, now), why) for member, (at, why) in by.items()})
            self._unreached = {
                member: (min(at + stall_s, now), peers) for member, (at, peers) in self._unreached.items()
            }
        return stall_s

    def lost_members(self, now: float) -> dict[str, str]:
        """Return the lost members, each with the reason."""
        return {member: why for member in self._renewed_s if (why := self._loss_reason(member, now))}

    def broken_connection(self, now: float) -> str:
        """Return which connection between two members must be made again, and why; empty if there is none.

        Such a connection broke more than a lease ago, both its members are alive, and the member that reported it has
        finished no round since.
        """
        for peer, by in self._broken.items():
            for member, (at, why) in by.items():
                if now - at > self._lease_s and self._advanced.get(member, 0.0) <= at:
                    return f"{member} lost its connection to {peer}, and both are alive: {why}"
        return ""

    def _forget(self, member: str) -> None:
        self._renewed_s.pop(member, None)
        self._disconnected.discard(member)
        self._advanced.pop(member, None)
        self._unreached.pop(member, None)
        for reports in (self._broken, self._waits):
            reports.pop(member, None)
        self._drop_reports_by(member)

    def _drop_reports_by(self, member: str) -> None:
        for reports in (self._broken, self._waits):
            for by in reports.values():
                by.pop(member, None)

    def _loss_reason(self, member: str, now: float) -> str:
        if member in self._leaving and not self._waits.get(member):
            return ""
        reports = self._broken.get(member, {})
        broken = {by: (at, why) for by, (at, why) in reports.items() if now - at <= self._lease_s}
        if now - self._renewed_s[member] > self._lease_s:
            return f"it did not renew its lease for {self._lease_s:g} s"
        others = self._renewed_s.keys() - self._leaving - {member}
        if broken and (member in self._disconnected or len(broken) > len(others) / 2):
            by, (_, why) = next(iter(broken.items()))
            return f"{by} lost its connection to {member}: {why}"
        waited = self._waits.get(member, {})
        waits = any(member in by for by in self._waits.values())
        if waited and not waits:
            since, by = min((at, by) for by, (at, _) in waited.items())
            if now - since > max(self._lease_s, self._start_s.get(member, 0.0)):
                return f"{by} waits for {member} longer than a round takes: {waited[by][1]}"
        return ""


def _names(members: Iterable[str]) -> str:
    """Return the first SAID names, and how many more there are."""
    names = sorted(members)
    more = f" and {len(names) - SAID} more" if len(names) > SAID else ""
    return ", ".join(names[:SAID]) + more


@dataclass(frozen=True, slots=True)
class MembershipEvent:
    """A member left or came during a run."""

    #: `left` or `came`.
    kind: str
    member: str
    #: Unix seconds.
    at_s: float
    #: The last round before the event, or the iteration in which it happened.
    round: int | None
    #: The epoch of the first plan after the event; 0 in gossip, which has no plans.
    epoch: int
    why: str


#: Each member's address for its peers: host and port.
Roster = dict[str, tuple[str, int]]


@dataclass(slots=True)
class Reconfiguration:
    """A reconfiguration under way: the present members report what they hold, and then get a new plan."""

    epoch: int
    why: str
    #: The deadline for holdings, in monotonic seconds.
    due: float
    #: The plan with which the members will go on; None if it is to be made when all have reported.
    plan: Plan | None = None
    holdings: dict[str, Holding] = field(default_factory=dict)


class AllReduceMembership:
    """The present members of an all-reduce group, their addresses, and their leases if the run is elastic."""

    def __init__(self, identities: Identities, elastic: Elasticity | None) -> None:
        self.present = frozenset(identities.members)
        self.roster: Roster = {}
        self.quorum = elastic.quorum if elastic else len(self.present)
        #: The reconfiguration under way, from an abort until the present members go on.
        self.reconfiguration: Reconfiguration | None = None
        #: Member that joined during the run -> the members that were present and that it could not reach.
        self.apart: dict[str, frozenset[str]] = {}
        self._identities = identities
        self._lease_s = elastic.lease_s if elastic else 0.0
        self.leases = Leases(self._lease_s)
        #: The members that have not yet reconnected to a restarted controller. They may know of newer plans.
        self.not_reconnected: set[str] = set()
        self._aborted = False
        self._generation = 0

    @property
    def abort_unfinished(self) -> bool:
        """True if all members have reconnected, and some still wait after an abort by the previous controller."""
        return self._aborted and not self.not_reconnected and self.reconfiguration is None

    # Reports about members

    def report_loss(self, lost: Lost, now: float) -> None:
        """Record that a member lost a peer, unless the report is of an earlier generation.

        At a membership change the first members to hear of it close their connections to the others, so that a loss
        in an earlier generation proves nothing.
        """
        if lost.generation >= self._generation:
            self.leases.report_peer(lost.member, lost.peer, lost.why, lost.broken, now)

    def report_unreached(self, unreached: Unreached, now: float) -> None:
        """Record which peers a member could not reach, unless the report is of an earlier generation."""
        if self.reconfiguration is None and unreached.generation >= self._generation:
            self.leases.report_unreached(unreached.member, unreached.peers, now)

    def cut_off(self, plan: Plan, now: float) -> dict[str, str]:
        """Return the members that are cut off from the others (see Leases), each with the reason.

        The caller must `remove` them. During a reconfiguration there is no such member.
        """
        if self.reconfiguration is not None:
            return {}
        pairs = [(source, target) for source, target, _ in plan.edges()]
        return self.leases.cut_off(self.present, pairs, self.quorum, now)

    def lost_members(self, now: float) -> dict[str, str]:
        """Return the lost members, each with the reason. The caller must `remove` them.

        During a reconfiguration a member is also lost if it did not report what it holds in time.
        """
        stall_s = self.leases.extend_for_stall(now)
        gone = self.leases.lost_members(now)
        change = self.reconfiguration
        if change is None:
            return gone
        change.due += stall_s
        if now >= change.due:
            gone |= dict.fromkeys(
                self.present - change.holdings.keys() - gone.keys(), "it did not report what it holds in time"
            )
        return gone

    def broken_connection(self, now: float) -> str:
        """Return why the present members must reconnect to each other (see Leases); empty if they need not."""
        return "" if self.reconfiguration is not None else self.leases.broken_connection(now)

    def recover(self, plan: Plan, roster: Roster) -> None:
        """Restore the members and addresses from a member that reconnected to this restarted controller."""
        self.present = frozenset(plan.members)
        self.not_reconnected = set(self.present)
        self.roster = dict(roster)

    def recover_joined(self, members: Collection[str], roster: Mapping[str, tuple[str, int]], now: float) -> None:
        """Add members that joined under the controller before this one, by a newer plan than known so far."""
        self.present |= frozenset(members)
        self.roster |= {member: address for member, address in roster.items() if member in members}
        self.leases.begin(members, now)

    def rejoin(self, hello: Hello, rejoin: Rejoin, now: float) -> Actions:
        """Take back a member that reconnected; stop it if the others went on without it."""
        if rejoin.member not in self.present:
            yield Tell(rejoin.member, Stop("the other members went on without this one", again=True))
            return
        self.not_reconnected.discard(rejoin.member)
        self.roster[hello.member] = hello.address  # another member may have reported a wrong address
        self._aborted |= rejoin.aborted
        self.leases.renew(rejoin.member, now)
        if self.reconfiguration is not None:
            yield Tell(rejoin.member, Abort(self.reconfiguration.epoch, self.reconfiguration.why))

    # Members that leave

    def remove(self, gone: Mapping[str, str]) -> Actions:
        """Remove present members, and tell each of them to stop."""
        self.present -= gone.keys()
        for member, why in gone.items():
            self.leases.end(member)
            self.not_reconnected.discard(member)
            yield Tell(member, Stop(brief(f"the other members go on without this one: {why}"), again=True))

    def abort(self, epoch: int, why: str, now: float, plan: Plan | None = None) -> Actions:
        """Start a reconfiguration: no element becomes final until all present members have reported what they hold.

        Then they go on under `plan`, or under one that is made for them.
        """
        self.reconfiguration = Reconfiguration(epoch, brief(why), now + self._lease_s, plan)
        self._aborted = False
        self.leases.begin(self.present, now)
        for member in sorted(self.present):
            yield Tell(member, Abort(epoch, brief(why)))

    def add_holding(self, holding: Holding) -> bool:
        """Record what a member holds. Return whether all present members have now reported."""
        change = self.reconfiguration
        if change is None or holding.epoch != change.epoch or holding.member not in self.present:
            return False
        change.holdings[holding.member] = holding
        return change.holdings.keys() == self.present

    def reconfigure(self, plan: Plan) -> Actions:
        """Have the present members go on under `plan`. To be called once all of them have reported what they hold."""
        change, self.reconfiguration = self.reconfiguration, None
        if change is None:
            raise ValueError(f"no reconfiguration is under way that epoch {plan.epoch} could end")
        self._aborted = False  # members that reconnected meanwhile waited for this one
        self._generation = plan.epoch
        holdings = tuple(change.holdings[member] for member in plan.members)
        for member in plan.members:
            yield Tell(member, Reconfigure(plan.to_json(), _roster_of(self.roster, plan), holdings))

    # Members that join

    def ask_reach(self, member: str) -> Tell:
        """Return the question which present members a member that waits to join can't reach."""
        return Tell(member, Reach({present: self.roster[present] for present in sorted(self.present)}))

    def welcome(self, member: str, job: Job, plan: Plan, source: str = "") -> Tell:
        """Return a member's Welcome. A member that joins during training copies its state from the member `source`."""
        roster, keys = _roster_of(self.roster, plan), self._identities.keys(member)
        return Tell(member, Welcome(job, roster, plan.to_json(), keys, self._lease_s, source))

    def prepare(self, plan: Plan, joins: str, job: Job, rates: Mapping[str, float], now: float) -> Actions:
        """Have the members prepare a plan with a new member, which copies its state from the nearest present member.

        The nearest one is that with the highest of `rates` (bit/s) to the new member, of those that it reaches.
        `now` is in monotonic seconds.
        """
        reached = self.present - self.apart.get(joins, frozenset())
        source = max(sorted(reached), key=lambda member: rates.get(member, 0.0))
        self.leases.begin([joins], now, job.round_timeout_s / 2)  # a round of the others fails after the whole
        yield self.welcome(joins, job, plan, source)
        for member in sorted(self.present):
            keys = {joins: self._identities.key(member, joins)}
            yield Tell(member, Prepare(plan.to_json(), _roster_of(self.roster, plan), source, keys))

    def record_apart(self, member: str, peers: frozenset[str]) -> None:
        """Record which present members a member that joins can't reach. What others could not reach before is over."""
        self.apart = {other: its - {member} for other, its in self.apart.items()} | {member: peers}

    def admit(self, member: str) -> None:
        """Add a member to those present."""
        self.present |= {member}


def _roster_of(roster: Roster, plan: Plan) -> Roster:
    return {member: roster[member] for member in plan.members}


class GroupState:
    """The members, plans and rounds of one run. The coordinator writes them; replanning reads them.

    Attributes:
        clocks: The run's clocks.
        phase: "waiting" until all members are present, "running", or "over".
        jobs: Each member's job.
        membership: The present members.
        plans: The plan in force, a pending one, and earlier ones.
        rounds: The rounds that members reported.
    """

    def __init__(self, spec: ControllerSpec, identities: Identities, out: Path, clocks: Clocks) -> None:
        self.clocks = clocks
        self.phase: Literal["waiting", "running", "over"] = "waiting"
        self.jobs = spec.jobs
        self.membership = AllReduceMembership(identities, spec.elastic)
        self.plans = PlanHistory(out, clocks)
        self.rounds = RoundLog(self._expected)

    @property
    def last_round(self) -> int | None:
        """The number of the last completed round, or None before the first."""
        return self.rounds.last.number if self.rounds.last else None

    def abort(self, why: str) -> Actions:
        """Abort the current round: the present members report their state, and continue under another plan."""
        yield from self.membership.abort(self.plans.epochs.next(), why, self.clocks.monotonic())

    def restart(self, plan: Plan, why: str) -> Generator[Action, None, Plan]:
        """Abort the current round, which the present members start again under `plan`. Return it with its epoch."""
        plan = plan.with_epoch(self.plans.epochs.next())
        yield from self.membership.abort(plan.epoch, why, self.clocks.monotonic(), plan)
        return plan

    def _expected(self, epoch: int) -> frozenset[str]:
        """Return the members that report the rounds of an epoch."""
        found = self.plans.members(epoch)
        return self.membership.present if found is None else found
