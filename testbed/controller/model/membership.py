"""Who is a member: leases, and the members of an all-reduce group as they come and go. No I/O; times are monotonic.

    a member is gone   Abort to all others --all Holdings are in--> Reconfigure, under a plan without the member
    a connection broke the same among all, who get connections of their own with the plan
    a member comes     prepare: a plan with it, agreed on as any other; admit: the first round under that plan

If another member goes before that is over, the first of these begins again, under a newer epoch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from testbed.controller.model.actions import Actions, Tell
from testbed.controller.model.identity import Identities
from testbed.controller.model.spec import Elasticity
from testbed.plan import Plan
from testbed.protocol import Abort, Hello, Holding, Job, Lost, Prepare, Reconfigure, Rejoin, Stop, Welcome
from testbed.schema import brief

#: Looks within a lease. By what one comes late we were away ourselves, and can't say that others were.
LOOKS = 8


class Leases:
    """A member is gone when one of these holds:

    - it has not renewed its lease for `lease_s`;
    - its connection to us ended, and a peer's connection to it broke;
    - the connections of more than half of the others to it broke;
    - for a lease, others have waited for it longer than a round takes, and it waits for nobody itself.
    """

    def __init__(self, lease_s: float) -> None:
        self._lease_s = lease_s
        self._seen: dict[str, float] = {}
        self._hung_up: set[str] = set()
        self._broken: dict[str, dict[str, tuple[float, str]]] = {}
        self._waited: dict[str, dict[str, tuple[float, str]]] = {}
        self._advanced: dict[str, float] = {}
        self._looked = 0.0

    @property
    def look_s(self) -> float:
        """How often to ask who is gone."""
        return self._lease_s / LOOKS

    def begin(self, members: Iterable[str], now: float) -> None:
        """From now on these have a lease; what was said of them is forgotten."""
        self.look(now)
        for member in members:
            self.end(member)
            self._seen[member] = now

    def end(self, member: str) -> None:
        """It needs none any more."""
        self._seen.pop(member, None)
        self._hung_up.discard(member)
        self._advanced.pop(member, None)
        for said in (self._broken, self._waited):
            said.pop(member, None)
            for by in said.values():
                by.pop(member, None)

    def renew(self, member: str, now: float) -> None:
        """It is there."""
        if member in self._seen:
            self._seen[member] = now
            self._hung_up.discard(member)

    def hang_up(self, member: str) -> None:
        """Its connection to us ended; it may come back within its lease."""
        if member in self._seen:
            self._hung_up.add(member)

    def lose(self, member: str, peer: str, why: str, broken: bool, now: float) -> None:
        """`member` lost `peer`, or waits for it in vain."""
        if not {member, peer} <= self._seen.keys():
            return
        if broken:
            self._broken.setdefault(peer, {})[member] = (now, why)
        else:
            self._waited.setdefault(peer, {}).setdefault(member, (now, why))

    def advance(self, member: str, now: float) -> None:
        """It finished a round: it waits for nobody."""
        self._advanced[member] = now
        for by in self._waited.values():
            by.pop(member, None)

    def look(self, now: float) -> float:
        """To be called before it is asked who is gone: for so many seconds nobody could renew with us, or tell that it
        waits no more. All have so much longer."""
        away_s = max(now - self._looked - self.look_s, 0.0)
        self._looked = now
        if away_s:
            self._seen = {member: min(at + away_s, now) for member, at in self._seen.items()}
            for by in self._waited.values():
                by.update({member: (min(at + away_s, now), why) for member, (at, why) in by.items()})
        return away_s

    def gone(self, now: float) -> dict[str, str]:
        """Who is gone, and why."""
        return {member: why for member in self._seen if (why := self._why(member, now))}

    def torn(self, now: float) -> str:
        """Which connection is to be made anew, and why: it broke a lease ago, nobody is gone, and who lost the other
        has finished no round since. Empty where there is none."""
        for peer, by in self._broken.items():
            for member, (at, why) in by.items():
                if now - at > self._lease_s and self._advanced.get(member, 0.0) <= at:
                    return f"{member} lost its connection to {peer}, and both are there: {why}"
        return ""

    def _why(self, member: str, now: float) -> str:
        broken = self._broken.get(member, {})
        if now - self._seen[member] > self._lease_s:
            return f"it did not renew its lease for {self._lease_s:g} s"
        if broken and (member in self._hung_up or len(broken) > (len(self._seen) - 1) / 2):
            by, (_, why) = next(iter(broken.items()))
            return f"{by} lost it: {why}"
        waited = self._waited.get(member, {})
        waits = any(member in by for by in self._waited.values())
        if waited and not waits:
            since, by = min((at, by) for by, (at, _) in waited.items())
            if now - since > self._lease_s:
                return f"{by} waits for it in vain: {waited[by][1]}"
        return ""


@dataclass(frozen=True, slots=True)
class MembershipEvent:
    """A member `left` or `came`: when (Unix time), after which round or in which iteration, and why.

    `epoch` is that of the first plan after it, 0 where members go by no plans.
    """

    kind: str
    member: str
    at_s: float
    round: int | None
    epoch: int
    why: str


#: A member and where it listens.
Roster = dict[str, tuple[str, int]]


@dataclass(slots=True)
class Reconfiguration:
    """A plan for those who are left is to come: what they hold, as far as they have said so by `due`."""

    epoch: int
    why: str
    due: float
    holdings: dict[str, Holding] = field(default_factory=dict)


class AllReduceMembership:
    """The members that are `present`, where they listen, and their leases, if the run is `elastic`.

    `leases` hears who hangs up, and who finishes a round. `reconfiguration` is under way from an abort until those who
    are left go on. Who is `away` has not found this controller yet, which was started anew, and may know of plans that
    others do not.
    """

    def __init__(self, identities: Identities, elastic: Elasticity | None) -> None:
        self.present = frozenset(identities.members)
        self.roster: Roster = {}
        self.quorum = elastic.quorum if elastic else len(self.present)
        self.reconfiguration: Reconfiguration | None = None
        self._identities = identities
        self._lease_s = elastic.lease_s if elastic else 0.0
        self.leases = Leases(self._lease_s)
        self.away: set[str] = set()
        self._aborted = False
        self._generation = 0

    @property
    def look_s(self) -> float:
        """How often to ask who is gone; 0 where nobody has a lease."""
        return self.leases.look_s

    @property
    def orphaned(self) -> bool:
        """Whether all are back at this controller, and some were told to abort by one before it."""
        return self._aborted and not self.away and self.reconfiguration is None

    def begin(self, now: float) -> None:
        """All present are there: from now on they have leases."""
        self.leases.begin(self.present, now)

    def end(self) -> None:
        """The run is over."""
        self.reconfiguration = None

    # What is heard of members

    def renewed(self, member: str, now: float) -> None:
        """A member is still there."""
        self.leases.renew(member, now)

    def done(self, member: str) -> None:
        """A member said goodbye, or is not to come: its connections may end."""
        self.leases.end(member)

    def lost(self, lost: Lost, now: float) -> None:
        """A member lost a peer. In a generation before the one that all were told to go on in, that says nothing: who
        hears of it first closes its connections to who has yet to hear of it."""
        if lost.generation >= self._generation:
            self.leases.lose(lost.member, lost.peer, lost.why, lost.broken, now)

    def gone(self, now: float) -> dict[str, str]:
        """The members that are gone by now, and why; `remove` them."""
        away_s = self.leases.look(now)
        gone = self.leases.gone(now)
        change = self.reconfiguration
        if change is None:
            return gone
        change.due += away_s
        if now >= change.due:
            gone |= dict.fromkeys(self.present - change.holdings.keys() - gone.keys(), "it did not say what it holds")
        return gone

    def torn(self, now: float) -> str:
        """Why those who are present are to begin anew among themselves: see Leases. Empty where they are not."""
        return "" if self.reconfiguration is not None else self.leases.torn(now)

    def recover(self, plan: Plan, roster: Roster) -> None:
        """The controller was started anew, and hears from a member which others there are."""
        self.present = frozenset(plan.members)
        self.away = set(self.present)
        self.roster = dict(roster)

    def came_back(self, hello: Hello, rejoin: Rejoin, now: float) -> Actions:
        """A member that never left found the controller again. It goes if the others went on without it."""
        if rejoin.member not in self.present:
            yield Tell(rejoin.member, Stop("the others went on without this member", again=True))
            return
        self.away.discard(rejoin.member)
        self.roster[hello.member] = hello.address  # another member may have said anything of it
        self._aborted |= rejoin.aborted
        self.renewed(rejoin.member, now)
        if self.reconfiguration is not None:
            yield Tell(rejoin.member, Abort(self.reconfiguration.epoch, self.reconfiguration.why))

    # Members that go

    def remove(self, gone: Mapping[str, str]) -> Actions:
        """These members of those present take part no more."""
        self.present -= gone.keys()
        for member, why in gone.items():
            self.leases.end(member)
            self.away.discard(member)
            yield Tell(member, Stop(brief(f"the others go on without this member: {why}"), again=True))

    def abort(self, epoch: int, why: str, now: float) -> Actions:
        """Nothing becomes final any more until all who are present have said what they hold."""
        self.reconfiguration = Reconfiguration(epoch, brief(why), now + self._lease_s)
        self._aborted = False
        self.leases.begin(self.present, now)
        for member in sorted(self.present):
            yield Tell(member, Abort(epoch, brief(why)))

    def holding(self, holding: Holding) -> bool:
        """A member says what it holds; whether all have, so that they can be told how to go on."""
        change = self.reconfiguration
        if change is None or holding.epoch != change.epoch or holding.member not in self.present:
            return False
        change.holdings[holding.member] = holding
        return change.holdings.keys() == self.present

    def reconfigure(self, plan: Plan) -> Actions:
        """Those who are present go on under `plan`. To be called once all have said what they hold."""
        change, self.reconfiguration = self.reconfiguration, None
        if change is None:
            raise ValueError(f"nothing was aborted, so epoch {plan.epoch} is not to be resumed with")
        self._generation = plan.epoch
        holdings = tuple(change.holdings[member] for member in plan.members)
        for member in plan.members:
            yield Tell(member, Reconfigure(plan.to_json(), _part(self.roster, plan), holdings))

    # Members that come

    def welcome(self, member: str, job: Job, plan: Plan, source: str = "") -> Tell:
        """Let a member in; one that comes while the others train has a `source` of the state."""
        roster, keys = _part(self.roster, plan), self._identities.keys(member)
        return Tell(member, Welcome(job, roster, plan.to_json(), keys, self._lease_s, source))

    def prepare(self, plan: Plan, joins: str, job: Job, rates: Mapping[str, float], now: float) -> Actions:
        """Have the members hold a plan with which one `joins`, and let it begin from a neighbour's state.

        `rates` to the new member say who is its nearest.
        """
        source = max(sorted(self.present), key=lambda member: rates.get(member, 0.0))
        self.leases.begin([joins], now)
        yield self.welcome(joins, job, plan, source)
        for member in sorted(self.present):
            keys = {joins: self._identities.key(member, joins)}
            yield Tell(member, Prepare(plan.to_json(), _part(self.roster, plan), source, keys))

    def admit(self, member: str) -> None:
        """A member takes part."""
        self.present |= {member}


def _part(roster: Roster, plan: Plan) -> Roster:
    """Where a plan's members listen."""
    return {member: roster[member] for member in plan.members}
