"""The present and future state of each link: computed from four sources, sent to the shaper, and recorded.

configured state  <-  trace row  <-  change asked for  <-  down        each source overrides those to its left

Rows of traces go to the shaper ahead of their time, and the shaper puts each in force at its moment. A change that is
requested meanwhile overrides rows that were already sent: they are sent again.
"""

from __future__ import annotations

import threading
import time
from array import array
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from testbed.emulation.shaping.base import ShapingError
from testbed.link import Delivery, LinkState
from testbed.spec.event import LinkChange
from testbed.spec.topology import Link
from testbed.trace.trace import Row

if TYPE_CHECKING:
    from testbed.emulation.links.replay import Replay
    from testbed.emulation.shaping.base import Shaper

#: Called for each state that is put in force: (seconds on the monotonic clock, link, state).
Observer = Callable[[float, str, LinkState], None]

#: Rows with the moments at which they take effect, in seconds on the monotonic clock; None is the end of a trace that
#: stops.
Rows = Sequence[tuple[float, Row | None]]

#: The tolerance for comparing moments: the shaper reports them to the nanosecond and receives them as decimals.
SAME_MOMENT_S = 1e-6

#: The most of a link's rows whose lateness is kept, and the newest ones that are all kept: a minute of ticks of 100 ms.
REMEMBERED, NEWEST = 36_000, 600


class Lateness:
    """How late a link's rows were, in seconds: evenly spread rows of all time, and all of the newest ones."""

    def __init__(self) -> None:
        self.spread = array("d")
        self.newest: deque[float] = deque(maxlen=NEWEST)
        self._every, self._left = 1, 0

    def append(self, late_s: float) -> None:
        """Add a row. Once there are REMEMBERED, every second one is dropped, and every second later one left out."""
        self.newest.append(late_s)
        if self._left:
            self._left -= 1
            return
        self._left = self._every - 1
        self.spread.append(late_s)
        if len(self.spread) > REMEMBERED:
            del self.spread[1::2]
            self._every *= 2


class RequestedState(NamedTuple):
    """The state requested of a link: its file's, the change over its file and trace, and whether it is up."""

    link: Link
    change: LinkChange | None
    up: bool


class _QueuedRow(NamedTuple):
    """A trace row that the shaper will put in force at `due_s`, and the link's resulting state."""

    due_s: float
    row: Row | None
    state: LinkState


class Links:
    """The links of a network and their states in force. Any thread may use it; each change is one batch."""

    def __init__(self, shaper: Shaper, observer: Observer) -> None:
        self._shaper = shaper
        self._observer = observer
        self._lock = threading.Lock()
        self._links: dict[str, Link] = {}
        self._rows: dict[str, Row | None] = {}
        self._queued: dict[str, deque[_QueuedRow]] = {}
        self._late: dict[str, Lateness] = {}
        self._deliveries: dict[str, Delivery] = {}
        self._changes: dict[str, LinkChange] = {}
        self._down: set[str] = set()
        self._in_force: dict[str, LinkState] = {}
        self._clock: Replay | None = None
        #: Links whose last change the shaper refused, or did not answer and may carry out late.
        self._unsure: set[str] = set()

    def follow(self, clock: Replay) -> None:
        """Start new links where their traces are at the replay's time, instead of at the traces' begin."""
        self._clock = clock

    def add(self, link: Link) -> LinkState:
        """Register a link that is not shaped yet, and return the state to attach it with."""
        with self._lock:
            self._configure(link)
            self._in_force[link.name] = self._desired(link.name)
            self._observer(time.monotonic(), link.name, self._in_force[link.name])
            return self._in_force[link.name]

    def remove(self, name: str) -> None:
        """Forget a link that was removed, and the changes requested of it."""
        with self._lock:
            self._collect()
            for table in (self._links, self._rows, self._queued, self._deliveries, self._changes, self._in_force):
                table.pop(name, None)
            self._down.discard(name)
            self._unsure.discard(name)

    def configure(self, links: Iterable[Link]) -> None:
        """Set other configured states for existing links. Earlier requested changes and queued rows are dropped."""
        with self._lock:
            links = list(links)
            self._forget_queued([link.name for link in links])
            for link in links:
                self._configure(link)
            self._apply(link.name for link in links)

    def replay(self, rows: Mapping[str, Rows], replace_queued: bool = False) -> None:
        """Queue trace rows after those already queued; with `replace_queued`, first drop the queued rows of all links.

        Links without a trace are skipped: rows may arrive while the network is swapped.
        """
        with self._lock:
            if replace_queued:
                self._forget_queued(self._queued)
            else:
                self._collect()
            known = {
                name: its
                for name, its in rows.items()
                if (link := self._links.get(name)) is not None and link.trace is not None
            }
            for name in known:
                self._begin_delivery(name)
            if sent := {name: self._queue_rows(name, its) for name, its in known.items()}:
                self._shaper.expect(sent)

    def collect(self) -> None:
        """Record the rows that the shaper has put in force, and call the observer for each changed state."""
        with self._lock:
            self._collect()

    def check(self, change: LinkChange) -> None:
        """Raise the error with which `change` would refuse these values.

        Raises:
            KeyError: The link is not there.
            ShapingError: The link can't have these values.
        """
        with self._lock:
            self._check(change.link)
        self.check_values(change)

    def check_values(self, change: LinkChange) -> None:
        """Raise ShapingError if the link, which need not be there yet, can't have these values."""
        self._shaper.check_jitter(change.link, change.jitter or 0.0)

    def change(self, change: LinkChange) -> LinkChange:
        """Put values in force that override the trace.

        Returns:
            All values of the link that now override its file or trace.

        Raises:
            KeyError: The link is not there.
            ShapingError: The shaper refused the change, which then no longer counts as requested.
        """
        with self._lock, self._undone_if_refused():
            self._check(change.link)
            earlier = self._changes.get(change.link)
            self._changes[change.link] = change if earlier is None else change.after(earlier)
            self._collect()
            self._apply([change.link])
            return self._changes[change.link]

    def take(self, names: Iterable[str], up: bool, elsewhere: Iterable[str] = ()) -> None:
        """Take links down or up. Links `elsewhere`, which other hosts shape, are only recorded as down or up.

        Raises:
            KeyError: A link is not there.
            ShapingError: The shaper refused it. The links count as before.
        """
        with self._lock, self._undone_if_refused():
            names = list(names)
            for name in names:
                self._check(name)
            (self._down.difference_update if up else self._down.update)([*names, *elsewhere])
            self._collect()
            self._apply(names)

    @property
    def down(self) -> frozenset[str]:
        """The links that were taken down."""
        with self._lock:
            return frozenset(self._down)

    def requested(self) -> dict[str, RequestedState]:
        """Return the requested state of every link. Traces do not change it."""
        with self._lock:
            return {
                name: RequestedState(link, self._changes.get(name), name not in self._down)
                for name, link in self._links.items()
            }

    def states(self) -> dict[str, LinkState]:
        """Return the state in force on every link; if the shaper has ended, the last one that was known."""
        with self._lock:
            with suppress(ShapingError):  # `failure` says how it ended
                self._collect()
            return dict(self._in_force)

    def lateness(self, newest: bool = False) -> dict[str, list[float]]:
        """Return the seconds by which rows that changed anything were late, by each replayed link.

        The rows are spread evenly over all time, or are the NEWEST ones. Rows that were due but never in force are
        among them once the queued rows have been dropped.
        """
        with self._lock:
            return {name: list(late.newest if newest else late.spread) for name, late in self._late.items()}

    @contextmanager
    def _undone_if_refused(self) -> Iterator[None]:
        """Forget what the body requested of links if the shaper refuses it.

        Otherwise each later change of such a link, and each row of its trace, would be refused too.
        """
        changes, down, queued = dict(self._changes), set(self._down), dict(self._queued)
        try:
            yield
        except ShapingError:
            self._changes, self._down, self._queued = changes, down, queued
            raise

    def _check(self, name: str) -> None:
        if name not in self._links:
            raise KeyError(f"the network has no link {name}; its links: {', '.join(sorted(self._links))}")

    def _configure(self, link: Link) -> None:
        """Register a link, with its trace's row at the present time if it has a trace."""
        self._links[link.name] = link
        for table in (self._changes, self._rows, self._queued, self._deliveries):
            table.pop(link.name, None)
        if link.trace is not None:
            self._rows[link.name] = link.trace.at(self._clock.elapsed_s if self._clock else 0.0)

    def _begin_delivery(self, name: str) -> None:
        """Start serving a link's packet-delivery trace, if it has one; its time 0 is the beginning of the replay.

        Serving starts with the link's first rows: until then the link keeps one state, in which it can be measured.
        """
        trace = self._links[name].trace
        if name in self._deliveries or trace is None or self._clock is None or self._clock.began_s is None:
            return
        if (delivery := trace.delivery(self._clock.began_s)) is not None:
            self._deliveries[name] = delivery
            self._apply([name])

    def _forget_queued(self, names: Iterable[str]) -> None:
        """Drop the queued rows of links, after those that the shaper has put in force by then are recorded.

        A row that was due by now and is not in force counts as late by the time since then.
        """
        now = time.monotonic()
        if forgotten := [name for name in names if self._queued.get(name)]:
            self._shaper.apply({}, dict.fromkeys(forgotten, ()))
        self._collect()
        for name in forgotten:
            before = self._in_force[name]
            for due_s, _, state in self._queued[name]:
                if due_s < now and state != before and name in self._late:
                    self._late[name].append(now - due_s)
                before = state
            self._queued[name].clear()

    def _queue_rows(self, name: str, rows: Rows) -> list[tuple[float, LinkState]]:
        """Queue trace rows, and return each one's moment and resulting state, as a shaper takes them."""
        queued = [_QueuedRow(due_s, row, self._resulting_state(name, row, row is None)) for due_s, row in rows]
        self._queued.setdefault(name, deque()).extend(queued)
        return [(one.due_s, one.state) for one in queued]

    def _collect(self) -> None:
        """Move the rows that the shaper has put in force from the queues to the present state."""
        for applied in self._shaper.applied():
            queued = self._queued.get(applied.link, ())
            while queued and queued[0].due_s <= applied.due_s + SAME_MOMENT_S:
                _, self._rows[applied.link], state = queued.popleft()
                late = self._late.setdefault(applied.link, Lateness())
                # The row at which a replay begins is due as it is sent, and in force already as a rule.
                if self._in_force[applied.link] != state:
                    late.append(applied.late_s)
                    self._in_force[applied.link] = state
                    self._observer(applied.due_s + applied.late_s, applied.link, state)

    def _desired(self, name: str) -> LinkState:
        return self._resulting_state(name, self._rows.get(name), ended=name in self._rows and self._rows[name] is None)

    def _resulting_state(self, name: str, row: Row | None, ended: bool) -> LinkState:
        """Return the state that results from a row, or from the trace's end.

        A state is copied only if something differs: a copy takes 4 µs, and thousands of rows are queued.
        """
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
        """Apply the changed states now, and rebuild the queued future states on top of them."""
        names = list(names)
        desired = {name: self._desired(name) for name in names}
        changed = {
            name: state for name, state in desired.items() if self._in_force[name] != state or name in self._unsure
        }
        coming = {}
        for name in names:
            before = self._queued.get(name) or ()
            after = deque(one._replace(state=self._resulting_state(name, one.row, one.row is None)) for one in before)
            # A shaper may hold a future state as its difference from the state before it, so a link whose present state
            # changes gets its future ones again.
            if before and (after != before or name in changed):
                self._queued[name] = after
                coming[name] = [(one.due_s, one.state) for one in after]
        if not changed and not coming:
            return
        self._unsure.update(names)
        self._shaper.apply(changed, coming)
        self._unsure.difference_update(names)
        now = time.monotonic()
        self._in_force.update(changed)
        for name, state in changed.items():
            self._observer(now, name, state)


#: The states in a history: two seconds of traces of 1 ms on the 26 links of netstorm9; clients poll each second.
RECENT = 1 << 16


def link_record(at_s: float, link: str, state: LinkState) -> dict[str, Any]:
    """Return a line of `links.jsonl`: the state that a link has since `at_s`, in Unix seconds."""
    return {
        "at_s": at_s,
        "link": link,
        "rate_bps": state.rate_bps,
        "delay_s": state.delay_s,
        "jitter_s": state.jitter_s,
        "loss": state.loss,
        "up": state.up,
        "discipline": state.queue.discipline_name,
    }


def unix_seconds(clock_s: float) -> float:
    """Convert a moment of this machine's monotonic clock to Unix seconds, which other machines share."""
    return clock_s - time.monotonic() + time.time()


class History:
    """Remembers the states that a testbed's observer receives, and calls `tell` for each. Any thread may use it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._recent: deque[tuple[float, str, LinkState]] = deque(maxlen=RECENT)
        self._latest: dict[str, tuple[float, str, LinkState]] = {}
        self._count = 0
        self.tell: Callable[[], None] = lambda: None

    def note(self, at_s: float, link: str, state: LinkState) -> None:
        """Record that a link has this state since `at_s` on the monotonic clock."""
        with self._lock:
            self._latest[link] = (unix_seconds(at_s), link, state)
            self._recent.append(self._latest[link])
            self._count += 1
        self.tell()

    def since(self, count: int | None) -> tuple[list[dict[str, Any]], int]:
        """Return the states after the first `count` as records, and the count to ask with next.

        States that are no longer remembered are missing. With `count` None, the last state of each link is returned.
        """
        with self._lock:
            if count is None:
                found = list(self._latest.values())
            else:
                found = [self._recent[-place] for place in range(min(self._count - count, len(self._recent)), 0, -1)]
            return [link_record(*each) for each in found], self._count
