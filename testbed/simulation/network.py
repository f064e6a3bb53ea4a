"""The simulated network: each link's state from one moment to the next, by traces and by events.

    configured state  <-  trace row  <-  requested change  <-  down      (each overrides those before, as in emulation)

Events at a time are known beforehand. An event of a round is scheduled when that round is over; the states computed
for its moment and later are then computed again.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice, takewhile
from math import inf

import numpy as np
from numpy.typing import NDArray

from testbed.emulation.network.difference import Difference
from testbed.emulation.network.routing import Routes
from testbed.link import LinkState, link_name
from testbed.planning import Pair
from testbed.planning.constraints import GOODPUT, Constraints
from testbed.spec.event import Event, LinkChange
from testbed.spec.experiment import Experiment
from testbed.spec.topology import Link, Topology

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

#: Rows nearer than this to each other are one moment's: sums of durations are off by less.
SAME_S = 1e-9

#: The name of the capacity that paths without a route draw on. It carries nothing.
NOWHERE = "nowhere"


class TraceTable:
    """The traces of many links as arrays: the row that each has in force at a moment, and when the next row begins.

    Links without a trace stay as configured. Looked up trace by trace, 4,000 links with a row a second took a tenth
    of a second for each simulated second.
    """

    def __init__(self, links: Mapping[str, Link]) -> None:
        #: The position of each link, by name, in the arrays of `values`.
        self.position = {name: i for i, name in enumerate(links)}
        states = [link.state for link in links.values()]
        self._own = (
            np.array([state.rate_bps * state.up for state in states]),
            np.array([state.delay_s for state in states]),
            np.array([state.loss for state in states]),
        )
        traces = {i: link.trace for i, link in enumerate(links.values()) if link.trace is not None}
        self._traced = np.array(list(traces), dtype=np.int64)
        self._offset = np.array([trace.offset_s for trace in traces.values()])
        self._lasts = np.array([trace.duration_s for trace in traces.values()])
        self._end = np.array([trace.end for trace in traces.values()])
        self._steady = np.array([trace.is_steady for trace in traces.values()], dtype=bool)
        # Rows that several traces share are stored once. The moment at which they end follows the last of them.
        shared = {id(trace.rows): (trace.rows, trace.duration_s) for trace in traces.values()}
        starts = np.cumsum([0, *(len(rows) + 1 for rows, _ in shared.values())])
        start = dict(zip(shared, starts.tolist(), strict=False))
        self._first = np.array([start[id(trace.rows)] for trace in traces.values()], dtype=np.int64)
        self._times = np.array([at for rows, end in shared.values() for at in (*(row.time_s for row in rows), end)])
        users = {key: np.flatnonzero(self._first == start[key]) for key in shared}
        self._users = [(start[key], len(rows), users[key]) for key, (rows, _) in shared.items()]
        self._counts = np.array([len(trace.rows) for trace in traces.values()], dtype=np.int64)
        columns = [
            [value for rows, _ in shared.values() for value in (*(getattr(row, name) for row in rows), None)]
            for name in ("rate_bps", "delay_s", "loss")
        ]
        self._columns = [np.array(column, dtype=np.float64) for column in columns]  # None becomes NaN

    def values(self, at_s: float) -> tuple[Floats, Floats, Floats]:
        """Return the links' rates in bit/s (0 after a trace that stops), one-way delays in seconds, and losses."""
        values = [own.copy() for own in self._own]
        if len(self._traced):
            times = at_s + self._offset
            over = times >= self._lasts
            times = np.where((self._end == "loop") & over, np.fmod(times, self._lasts), times)
            row = self._first + self._begun(times) - 1
            stopped = (self._end == "stop") & over
            for mine, column in zip(values, self._columns, strict=True):
                mine[self._traced] = np.where(stopped | np.isnan(column[row]), mine[self._traced], column[row])
            values[0][self._traced[stopped]] = 0.0
        return values[0], values[1], values[2]

    def next_s(self, at_s: float) -> float:
        """Return the first later moment at which any trace changes its row, or ends; infinite if there is none."""
        if not len(self._traced):
            return np.inf
        times, loops, stops = at_s + self._offset, self._end == "loop", self._end == "stop"
        laps = np.where(loops, (times + SAME_S) // self._lasts * self._lasts, 0.0)
        begun = self._begun(times - laps + SAME_S)
        ends = begun == self._counts
        coming = laps + self._times[self._first + begun] - self._offset
        never = np.where(loops, self._steady, ends & ~(stops & (times + SAME_S < self._lasts)))
        return float(np.where(never, np.inf, coming).min())

    def _begun(self, times: Floats) -> Ints:
        """Return for each trace the number of its rows that have begun by its time."""
        found = np.empty(len(times), dtype=np.int64)
        for start, count, users in self._users:
            found[users] = np.searchsorted(self._times[start : start + count], times[users], side="right")
        return found


@dataclass(frozen=True)
class NetworkState:
    """The simulated network from the moment `at_s` on, in seconds after training began."""

    at_s: float
    topology: Topology
    table: TraceTable
    routes: Routes
    down: frozenset[str] = frozenset()
    #: The requested changes by link; they override traces.
    changes: Mapping[str, LinkChange] = field(default_factory=dict)

    @cached_property
    def states(self) -> dict[str, LinkState]:
        """The state of each WAN link at `at_s`, by the link's name."""
        return {name: self._state(link) for name, link in self.topology.links.items()}

    def _state(self, link: Link) -> LinkState:
        state = link.at(self.at_s + SAME_S)
        if link.name in self.changes:
            state = self.changes[link.name].over(state)
        return replace(state, up=False) if link.name in self.down and state.up else state

    @cached_property
    def sites(self) -> dict[str, str]:
        """The site of each worker, by name."""
        return {worker.name: worker.site for worker in self.topology.workers}

    def rates_and_delays(self, names: Sequence[str]) -> tuple[Floats, Floats]:
        """Return the payload rates (bytes/s) and the one-way delays (s) of links; other names are access links."""
        lan, position = self.topology.lan, self.table.position
        rates, delays, losses = self.table.values(self.at_s + SAME_S)
        for name in self.down | self.changes.keys():
            if name in position:
                state, i = self._state(self.topology.links[name]), position[name]
                rates[i], delays[i], losses[i] = state.rate_bps * state.up, state.delay_s, state.loss
        links = np.array([position.get(name, len(position)) for name in names], dtype=np.int64)
        payload = np.append(rates * (1 - losses), lan.rate) * GOODPUT / 8
        return payload[links], np.append(delays, lan.delay)[links]

    def delay_s(self, source: str, target: str) -> float:
        """Return the one-way delay between two workers with empty queues; infinite if there is no route."""
        links = self.links_between(source, target)
        return inf if links is None else 2 * self.topology.lan.delay + sum(self.states[name].delay_s for name in links)

    def carries(self, source: str, target: str) -> bool:
        """Return whether packets between two workers arrive: there is a route, and no link on it loses them all."""
        links = self.links_between(source, target)
        return links is not None and all(self.states[name].up and self.states[name].loss < 1 for name in links)

    def links_between(self, source: str, target: str) -> Sequence[str] | None:
        """Return the WAN links on the route between two workers, or None if there is no route."""
        a, b = self.sites[source], self.sites[target]
        return self.routes.links(a, b) if self.routes.reach(a, b) else None

    def constraints(self, pairs: Sequence[Pair]) -> Constraints:
        """Return the capacities that pairs of workers draw on, less the share of packets that are lost at random."""
        lan = self.topology.lan.rate * GOODPUT
        drawn: dict[Pair, tuple[str, ...]] = {}
        goodput = {NOWHERE: 0.0}
        for source, target in pairs:
            links = self.links_between(source, target)
            if links is None:
                drawn[source, target] = (NOWHERE,)
                continue
            uplink, downlink = link_name(source, self.sites[source]), link_name(self.sites[target], target)
            drawn[source, target] = (uplink, *links, downlink)
            for name in drawn[source, target]:
                link = self.states.get(name)
                goodput[name] = lan if link is None else link.rate_bps * link.up * (1 - link.loss) * GOODPUT
        return Constraints(goodput, drawn)

    @cached_property
    def next_row_s(self) -> float:
        """The moment at which the next row of a trace comes into force; infinite if there is none."""
        return self.table.next_s(self.at_s)

    def after(self, event: Event, experiment: Experiment) -> NetworkState:
        """Return the state that an event leads to, at the same moment as this state."""
        if event.change:
            change = event.change.scaled(experiment.spec.scale)
            earlier = self.changes.get(change.link)
            whole = change if earlier is None else change.after(earlier)
            return replace(self, changes={**self.changes, change.link: whole})
        if event.down or event.up:
            names = {link_name(*event.pair), link_name(*reversed(event.pair))}
            down = self.down - names if event.up else self.down | names
            return replace(self, down=down, routes=Routes.over(self.topology, down))
        if event.swap:
            return self._swapped(experiment.networks[event.swap])
        return self

    def _swapped(self, topology: Topology) -> NetworkState:
        """Return the state on another network. Changes to links that it lacks, or has otherwise, are dropped."""
        links = Difference.between(self.topology, topology).links
        dropped = {*links.removed, *links.changed}
        down = self.down - set(links.removed)
        changes = {name: change for name, change in self.changes.items() if name not in dropped}
        table, routes = TraceTable(topology.links), Routes.over(topology, down)
        return NetworkState(self.at_s, topology, table, routes, down, changes)


class SimulatedNetwork:
    """The successive states of the network, computed on demand."""

    def __init__(self, experiment: Experiment, routes: Routes) -> None:
        self._experiment = experiment
        self._start = NetworkState(0.0, experiment.topology, TraceTable(experiment.topology.links), routes)
        timed = [(event.at, event) for event in experiment.spec.events if event.at is not None]
        self._events = sorted(timed, key=_moment)
        self._states = [self._first()]

    def schedule(self, at_s: float, event: Event) -> None:
        """Add an event at a moment."""
        self._events = sorted([*self._events, (at_s, event)], key=_moment)
        self._states = [state for state in self._states if state.at_s < at_s] or [self._first()]

    def _first(self) -> NetworkState:
        return self._after_events(self._start, [event for at_s, event in self._events if at_s <= 0])

    def _after_events(self, state: NetworkState, events: Sequence[Event]) -> NetworkState:
        for event in events:
            state = state.after(event, self._experiment)
        return state

    def at(self, at_s: float) -> NetworkState:
        """Return the state in force at a moment; an event or a row is in force from its own moment on."""
        return next(self.since(at_s))

    def next_change_s(self, state: NetworkState) -> float:
        """Return the moment at which another state follows this one; infinite if none does."""
        following = islice(self.since(state.at_s), 1, 2)
        return next((later.at_s for later in following), inf)

    def between(self, from_s: float, until_s: float) -> list[NetworkState]:
        """Return the state in force at `from_s` and those that follow it until `until_s`."""
        return list(takewhile(lambda state: state.at_s <= until_s, self.since(from_s)))

    def since(self, from_s: float) -> Iterator[NetworkState]:
        """Yield the state in force at a moment and all that follow it, without end if a trace loops."""
        index = self._index_at(from_s)
        while True:
            while index + 1 >= len(self._states):
                if not self._compute_next():
                    yield self._states[index]
                    return
            if self._states[index + 1].at_s > from_s:
                yield self._states[index]
            index += 1

    def forget(self, until_s: float) -> None:
        """Drop the states before the one in force at `until_s`: no caller may ask for an earlier moment from now on."""
        del self._states[: self._index_at(until_s)]

    def _index_at(self, at_s: float) -> int:
        """Return the position of the state in force at a moment, among those that are computed."""
        return max(bisect_right(self._states, at_s, key=lambda state: state.at_s) - 1, 0)

    def _compute_next(self) -> bool:
        """Append the state after the last one. Returns whether there is one."""
        last = self._states[-1]
        coming = [(at_s, event) for at_s, event in self._events if at_s > last.at_s]
        at_s = min([last.next_row_s, *map(_moment, coming)])
        if at_s == inf:
            return False
        now = [event for moment, event in coming if moment == at_s]
        self._states.append(self._after_events(replace(last, at_s=at_s), now))
        return True


def _moment(entry: tuple[float, Event]) -> float:
    return entry[0]
