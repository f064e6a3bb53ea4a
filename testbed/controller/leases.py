"""Who is still there: leases that members renew, and what their peers say of them. Pure; times are monotonic."""

from __future__ import annotations

from collections.abc import Iterable

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
