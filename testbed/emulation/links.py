"""What each link's state is now, from the four things that speak into it, and its way into the shaper.

configured state  <-  trace row  <-  change asked for  <-  down
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from testbed.link import Delivery, LinkState
from testbed.spec.experiment import Change
from testbed.spec.topology import Link
from testbed.trace.trace import Row

if TYPE_CHECKING:
    from testbed.emulation.shaping.base import Shaper

#: Told of each state put in force: (seconds on the monotonic clock when it was, link, state).
Observer = Callable[[float, str, LinkState], None]


class Clock(Protocol):
    """What traces are replayed by."""

    @property
    def elapsed_s(self) -> float: ...

    @property
    def began_s(self) -> float | None: ...


class Links:
    """The links of a network and the states in force. Any thread may speak to it; changes go in one batch each."""

    def __init__(self, shaper: Shaper, observer: Observer) -> None:
        self._shaper = shaper
        self._observer = observer
        self._lock = threading.Lock()
        self._links: dict[str, Link] = {}
        self._rows: dict[str, Row | None] = {}
        self._deliveries: dict[str, Delivery] = {}
        self._changes: dict[str, Change] = {}
        self._down: set[str] = set()
        self._in_force: dict[str, LinkState] = {}
        self._clock: Clock | None = None

    def follow(self, clock: Clock) -> None:
        """From now on a link with a trace begins where the trace is at the clock's time, not where it begins."""
        self._clock = clock

    def add(self, link: Link) -> LinkState:
        """Take a link in, not yet shaped; the state to attach it with."""
        with self._lock:
            self._configure(link)
            self._in_force[link.name] = self._desired(link.name)
            self._observer(time.monotonic(), link.name, self._in_force[link.name])
            return self._in_force[link.name]

    def remove(self, name: str) -> None:
        """Forget a link that is gone, and what was asked of it."""
        with self._lock:
            for table in (self._links, self._rows, self._deliveries, self._changes, self._in_force):
                table.pop(name, None)
            self._down.discard(name)

    def configure(self, links: Iterable[Link]) -> None:
        """Other configured states for links that are there; what was asked of them before is forgotten."""
        with self._lock:
            links = list(links)
            for link in links:
                self._configure(link)
            self._apply(link.name for link in links)

    def replay(self, rows: Mapping[str, Row | None]) -> None:
        """Put trace rows in force; None is the end of a trace that stops.

        A link that has no trace (any more) is passed over: a row may be on its way while the network is swapped.
        """
        with self._lock:
            known = {
                name: row
                for name, row in rows.items()
                if (link := self._links.get(name)) is not None and link.trace is not None
            }
            self._rows.update(known)
            for name in known:
                self._begin_delivery(name)
            self._apply(known)

    def change(self, change: Change) -> None:
        """Values that stay in force over the trace. KeyError for a link that is not there."""
        with self._lock:
            if change.link not in self._links:
                raise KeyError(f"no link {change.link} is up; there are {', '.join(sorted(self._links))}")
            earlier = self._changes.get(change.link)
            self._changes[change.link] = change if earlier is None else change.after(earlier)
            self._apply([change.link])

    def take(self, names: Iterable[str], up: bool) -> None:
        """Take links up or down. KeyError for one that is not there."""
        with self._lock:
            names = list(names)
            for name in names:
                if name not in self._links:
                    raise KeyError(f"no link {name} is up; there are {', '.join(sorted(self._links))}")
            (self._down.difference_update if up else self._down.update)(names)
            self._apply(names)

    @property
    def down(self) -> frozenset[str]:
        """The links taken down."""
        with self._lock:
            return frozenset(self._down)

    def states(self) -> dict[str, LinkState]:
        """The state in force on every link."""
        with self._lock:
            return dict(self._in_force)

    def _configure(self, link: Link) -> None:
        """A link with a trace is as its trace has it now, until the replay says otherwise."""
        self._links[link.name] = link
        self._changes.pop(link.name, None)
        self._rows.pop(link.name, None)
        self._deliveries.pop(link.name, None)
        if link.trace is not None:
            self._rows[link.name] = link.trace.at(self._clock.elapsed_s if self._clock else 0.0)

    def _begin_delivery(self, name: str) -> None:
        """Serve a trace's single opportunities, if it has some, as from the replay's begin on.

        Only once the replay speaks of the link: until then it keeps one state, in which it can be measured.
        """
        trace = self._links[name].trace
        if name in self._deliveries or trace is None or self._clock is None or self._clock.began_s is None:
            return
        if (delivery := trace.delivery(self._clock.began_s)) is not None:
            self._deliveries[name] = delivery

    def _desired(self, name: str) -> LinkState:
        """Copies a state only for what differs: each takes 4 µs, and 500 links may be due at once."""
        state, row = self._links[name].state, self._rows.get(name)
        if row is not None:
            state = row.over(state)
            if name in self._deliveries:
                state = replace(state, delivery=self._deliveries[name])
        ended = name in self._rows and row is None
        if name in self._changes:
            state = self._changes[name].over(state)
        up = not ended and name not in self._down
        return state if state.up == up else replace(state, up=up)

    def _apply(self, names: Iterable[str]) -> None:
        desired = {name: self._desired(name) for name in names}
        changed = {name: state for name, state in desired.items() if self._in_force[name] != state}
        if not changed:
            return
        self._shaper.apply(changed)
        now = time.monotonic()
        self._in_force.update(changed)
        for name, state in changed.items():
            self._observer(now, name, state)
