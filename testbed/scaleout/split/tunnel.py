"""Shaping over the hosts' network: what a link declares, less what the way between its two hosts takes by itself.

    declared 30 ms  ->  held by the router 29 ms  +  hosts' network 1 ms

Everything that speaks of links speaks of what they declare; only the shaper that does the work is told less.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from testbed.emulation.shaping.base import Applied, Coming, LinkCounters, Port, Shaper, ShapingError
from testbed.link import LinkState
from testbed.scaleout.underlay import over_underlay


class TunnelShaper(Shaper):
    """Another shaper, told each state less the link's floor; `floor_s` says that, 0 for a link that is not cut.

    ShapingError for a state below it: such a link would be slower than asked for, without a word.
    """

    def __init__(self, inner: Shaper, floor_s: Callable[[str], float]) -> None:
        self._inner = inner
        self._floor_s = floor_s

    @property
    def name(self) -> str:  # type: ignore[override]
        """The other's: what shapes is that."""
        return self._inner.name

    @property
    def realtime(self) -> bool | None:
        return self._inner.realtime

    def attach(self, ports: Mapping[Port, LinkState]) -> None:
        self._inner.attach({port: self._enforced(port.link, state) for port, state in ports.items()})

    def apply(self, states: Mapping[str, LinkState], coming: Mapping[str, Coming] | None = None) -> None:
        enforced = {link: self._enforced(link, state) for link, state in states.items()}
        self._inner.apply(enforced, None if coming is None else self._later(coming))

    def expect(self, coming: Mapping[str, Coming]) -> None:
        self._inner.expect(self._later(coming))

    def applied(self) -> list[Applied]:
        return self._inner.applied()

    def detach(self, link: str) -> None:
        self._inner.detach(link)

    def counters(self) -> dict[str, LinkCounters]:
        return self._inner.counters()

    def failure(self) -> str | None:
        return self._inner.failure()

    def close(self) -> None:
        self._inner.close()

    def _later(self, coming: Mapping[str, Coming]) -> dict[str, Coming]:
        return {
            link: [(due_s, self._enforced(link, state)) for due_s, state in states] for link, states in coming.items()
        }

    def _enforced(self, link: str, state: LinkState) -> LinkState:
        if (floor_s := self._floor_s(link)) == 0.0:
            return state
        try:
            return over_underlay(link, state, floor_s)
        except ValueError as error:
            raise ShapingError(str(error)) from error
