"""A shaper that records its calls, and puts future states in force by a clock that the test moves."""

from __future__ import annotations

from collections.abc import Mapping

from testbed.emulation.shaping.base import Applied, FutureStates, LinkCounters, Port, Shaper, ShapingError
from testbed.link import LinkState


class Recorder(Shaper):
    """Records states: `batches` as applied, `coming` the future states by link, `sent` all future states ever."""

    name = "recorder"
    realtime = False

    def __init__(self) -> None:
        self.batches: list[dict[str, LinkState]] = []
        self.coming: dict[str, list[tuple[float, LinkState]]] = {}
        self.sent: dict[str, list[tuple[float, LinkState]]] = {}
        self.counted: dict[str, LinkCounters] = {}
        self.broken = False
        self.ended: str | None = None  # how its process ended, if it did
        self.now_s = 0.0
        self.late_s = 0.0

    def attach(self, ports: Mapping[Port, LinkState]) -> None: ...

    def apply(self, states: Mapping[str, LinkState], coming: Mapping[str, FutureStates] | None = None) -> None:
        if self.broken:
            raise ShapingError("broken")
        for link in coming or {}:
            self.coming[link] = []
        if states:
            self.batches.append(dict(states))
        self.expect(coming or {})

    def expect(self, coming: Mapping[str, FutureStates]) -> None:
        if self.broken:
            raise ShapingError("broken")
        for link, states in coming.items():
            self.coming.setdefault(link, []).extend(states)
            if states:
                self.sent.setdefault(link, []).extend(states)

    def applied(self) -> list[Applied]:
        self._check()
        found = []
        for link, states in self.coming.items():
            while states and states[0][0] <= self.now_s:
                found.append(Applied(link, states.pop(0)[0], self.late_s))
        return found

    def detach(self, link: str) -> None: ...

    def counters(self) -> dict[str, LinkCounters]:
        self._check()
        return dict(self.counted)

    def failure(self) -> str | None:
        return self.ended

    def _check(self) -> None:
        if self.ended is not None:
            raise ShapingError(self.ended)

    def close(self) -> None: ...
