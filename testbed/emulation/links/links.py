"""What each link's state is now and will be, from the four things that speak into it, and its way into the shaper.

configured state  <-  trace row  <-  change asked for  <-  down

Rows of traces go to the shaper ahead of their time, which puts each in force by itself. What is asked for meanwhile
holds over those on their way too: they are sent again.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple, Protocol

from testbed.link import Delivery, LinkState
from testbed.spec.event import LinkChange
from testbed.spec.topology import Link
from testbed.trace.trace import Row

if TYPE_CHECKING:
    from testbed.emulation.shaping.base import Shaper

#: Told of each state put in force: (seconds on the monotonic clock when it was, link, state).
Observer = Callable[[float, str, LinkState], None]

#: Rows and the moments at which they are to be in force, in seconds on the monotonic clock; None is the end of a trace
#: that stops.
Rows = Sequence[tuple[float, Row | None]]

#: The shaper says moments to the nanosecond, and takes them as they are written in decimals.
SAME_MOMENT_S = 1e-6

#: How many rows of a link `lateness` can tell of: an hour of ticks of 100 ms.
REMEMBERED = 36_000


class Clock(Protocol):
    """What traces are replayed by."""

    @property
    def elapsed_s(self) -> float: ...

    @property
    def began_s(self) -> float | None: ...


class RequestedState(NamedTuple):
    """What was asked of a link: its file, the change over that and its trace, and whether it may pass packets."""

    link: Link
    change: LinkChange | None
    up: bool


class _Coming(NamedTuple):
    """A row that the shaper will put in force, and the state that it makes."""

    due_s: float
    row: Row | None
    state: LinkState


class Links:
    """The links of a network and the states in force. Any thread may speak to it; changes go in one batch each."""

    def __init__(self, shaper: Shaper, observer: Observer) -> None:
        self._shaper = shaper
        self._observer = observer
        self._lock = threading.Lock()
        self._links: dict[str, Link] = {}
        self._rows: dict[str, Row | None] = {}
        self._coming: dict[str, deque[_Coming]] = {}
        self._late: dict[str, deque[float]] = {}
        self._deliveries: dict[str, Delivery] = {}
        self._changes: dict[str, LinkChange] = {}
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
            self._collect()
            for table in (self._links, self._rows, self._coming, self._deliveries, self._changes, self._in_force):
                table.pop(name, None)
            self._down.discard(name)

    def configure(self, links: Iterable[Link]) -> None:
        """Other configured states for links that are there; what was asked of them before is forgotten, and so are the
        rows that were to come."""
        with self._lock:
            links = list(links)
            self._collect()
            forgotten = {link.name: () for link in links if self._coming.get(link.name)}
            for link in links:
                self._configure(link)
            if forgotten:
                self._shaper.apply({}, forgotten)
            self._apply(link.name for link in links)

    def replay(self, rows: Mapping[str, Rows], anew: bool = False) -> None:
        """Have trace rows come after those that are to come already; with `anew`, instead of those of any link.

        A link that has no trace (any more) is passed over: rows may be on their way while the network is swapped.
        """
        with self._lock:
            self._collect()
            known = {
                name: its
                for name, its in rows.items()
                if (link := self._links.get(name)) is not None and link.trace is not None
            }
            for name in known:
                self._begin_delivery(name)
            forgotten = [name for name, coming in self._coming.items() if coming] if anew else []
            for name in forgotten:
                self._coming[name].clear()
            sent = {name: self._foresee(name, its) for name, its in known.items()}
            if anew:
                self._shaper.apply({}, {**dict.fromkeys(forgotten, ()), **sent})
            elif sent:
                self._shaper.expect(sent)

    def collect(self) -> None:
        """Take note of the rows that the shaper has put in force; the observer hears of what they changed."""
        with self._lock:
            self._collect()

    def change(self, change: LinkChange) -> LinkChange:
        """Put values in force that stay over the trace.

        Returns:
            All values of the link that are in force over its file or trace by now.

        Raises:
            KeyError: The link is not there.
        """
        with self._lock:
            if change.link not in self._links:
                raise KeyError(f"no link {change.link} is up; links: {', '.join(sorted(self._links))}")
            earlier = self._changes.get(change.link)
            self._changes[change.link] = change if earlier is None else change.after(earlier)
            self._collect()
            self._apply([change.link])
            return self._changes[change.link]

    def take(self, names: Iterable[str], up: bool, elsewhere: Iterable[str] = ()) -> None:
        """Take links up or down. KeyError for one that is not there. What is `elsewhere`, in a part of the network that
        another host has, is only known to be so."""
        with self._lock:
            names = list(names)
            for name in names:
                if name not in self._links:
                    raise KeyError(f"no link {name} is up; links: {', '.join(sorted(self._links))}")
            (self._down.difference_update if up else self._down.update)([*names, *elsewhere])
            self._collect()
            self._apply(names)

    @property
    def down(self) -> frozenset[str]:
        """The links taken down."""
        with self._lock:
            return frozenset(self._down)

    def requested(self) -> dict[str, RequestedState]:
        """What was asked of every link, which traces do not change."""
        with self._lock:
            return {
                name: RequestedState(link, self._changes.get(name), name not in self._down)
                for name, link in self._links.items()
            }

    def states(self) -> dict[str, LinkState]:
        """The state in force on every link."""
        with self._lock:
            self._collect()
            return dict(self._in_force)

    def lateness(self, last: int = REMEMBERED) -> dict[str, list[float]]:
        """Seconds late, for each of the last rows of each link that came to be in force."""
        with self._lock:
            return {name: list(late)[-last:] for name, late in self._late.items()}

    def _configure(self, link: Link) -> None:
        """A link with a trace is as its trace has it now, until the replay says otherwise."""
        self._links[link.name] = link
        for table in (self._changes, self._rows, self._coming, self._deliveries):
            table.pop(link.name, None)
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
            self._apply([name])

    def _foresee(self, name: str, rows: Rows) -> list[tuple[float, LinkState]]:
        """Note rows as coming; the states that they make, as a shaper takes them."""
        coming = [_Coming(due_s, row, self._made(name, row, row is None)) for due_s, row in rows]
        self._coming.setdefault(name, deque()).extend(coming)
        return [(one.due_s, one.state) for one in coming]

    def _collect(self) -> None:
        """Rows that are in force now are those of their links."""
        for applied in self._shaper.applied():
            coming = self._coming.get(applied.link, ())
            while coming and coming[0].due_s <= applied.due_s + SAME_MOMENT_S:
                _, self._rows[applied.link], state = coming.popleft()
                self._late.setdefault(applied.link, deque(maxlen=REMEMBERED)).append(applied.late_s)
                if self._in_force[applied.link] != state:
                    self._in_force[applied.link] = state
                    self._observer(applied.due_s + applied.late_s, applied.link, state)

    def _desired(self, name: str) -> LinkState:
        return self._made(name, self._rows.get(name), ended=name in self._rows and self._rows[name] is None)

    def _made(self, name: str, row: Row | None, ended: bool) -> LinkState:
        """The state that a row makes, or the trace's end. Copies a state only for what differs: each takes 4 µs, and
        there are thousands of rows ahead."""
        state = self._links[name].state
        if row is not None:
            state = row.over(state)
            if name in self._deliveries:
                state = replace(state, delivery=self._deliveries[name])
        if name in self._changes:
            state = self._changes[name].over(state)
        up = not ended and name not in self._down
        return state if state.up == up else replace(state, up=up)

    def _apply(self, names: Iterable[str]) -> None:
        """Put in force what differs from what is, and have what is to come be over it."""
        names = list(names)
        desired = {name: self._desired(name) for name in names}
        changed = {name: state for name, state in desired.items() if self._in_force[name] != state}
        coming = {}
        for name in names:
            before = self._coming.get(name) or ()
            after = deque(one._replace(state=self._made(name, one.row, one.row is None)) for one in before)
            if after != before and before:
                self._coming[name] = after
                coming[name] = [(one.due_s, one.state) for one in after]
        if not changed and not coming:
            return
        self._shaper.apply(changed, coming)
        now = time.monotonic()
        self._in_force.update(changed)
        for name, state in changed.items():
            self._observer(now, name, state)
