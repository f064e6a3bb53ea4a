"""The underlay in time: what each link is like from one moment to the next, by traces and by events.

    configured state  <-  trace row  <-  change asked for  <-  down        (as in emulation)

Events that come at a time are known beforehand. Those of a round are entered once that is over; what was reckoned from
their moment on is reckoned anew.
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
from testbed.planning.constraints import GOODPUT
from testbed.simulation.trace_table import SAME_S, TraceTable
from testbed.spec.event import Event, LinkChange
from testbed.spec.experiment import Experiment
from testbed.spec.topology import Link, Topology

Floats = NDArray[np.float64]

#: States before the one that is asked for that are kept: whoever looks back looks back by a round.
KEPT = 2048


@dataclass(frozen=True)
class UnderlayState:
    """The underlay from `at_s` on (seconds after training began). `changes` are in force over traces."""

    at_s: float
    topology: Topology
    table: TraceTable
    routes: Routes
    down: frozenset[str] = frozenset()
    changes: Mapping[str, LinkChange] = field(default_factory=dict)

    @cached_property
    def states(self) -> dict[str, LinkState]:
        """Each link's."""
        return {name: self._state(link) for name, link in self.topology.links.items()}

    def _state(self, link: Link) -> LinkState:
        state = link.at(self.at_s + SAME_S)
        if link.name in self.changes:
            state = self.changes[link.name].over(state)
        return replace(state, up=False) if link.name in self.down and state.up else state

    @cached_property
    def sites(self) -> dict[str, str]:
        """Each worker's."""
        return {worker.name: worker.site for worker in self.topology.workers}

    def figures(self, names: Sequence[str]) -> tuple[Floats, Floats]:
        """Bytes of payload a second, and seconds one way, of links, members' access links among them."""
        lan, place = self.topology.lan, self.table.place
        rates, delays, losses = self.table.figures(self.at_s + SAME_S)
        for name in self.down | self.changes.keys():
            if name in place:
                state, i = self._state(self.topology.links[name]), place[name]
                rates[i], delays[i], losses[i] = state.rate_bps * state.up, state.delay_s, state.loss
        links = np.array([place.get(name, len(place)) for name in names], dtype=np.int64)
        payload = np.append(rates * (1 - losses), lan.rate) * GOODPUT / 8
        return payload[links], np.append(delays, lan.delay)[links]

    def delay_s(self, source: str, target: str) -> float:
        """Seconds one way between two workers, queues empty; infinite where nothing gets through."""
        a, b = self.sites[source], self.sites[target]
        if not self.routes.reach(a, b):
            return inf
        return 2 * self.topology.lan.delay + sum(self.states[name].delay_s for name in self.routes.links(a, b))

    def at(self, at_s: float) -> UnderlayState:
        """The same, as traces have it at another moment."""
        return replace(self, at_s=at_s)

    @cached_property
    def next_row_s(self) -> float:
        """When a trace has another row in force; infinite where none ever has."""
        return self.table.next_s(self.at_s)

    def after(self, event: Event, experiment: Experiment) -> UnderlayState:
        """The underlay that an event makes of it, at the same moment."""
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

    def _swapped(self, topology: Topology) -> UnderlayState:
        """What was asked of links that the other network has not, or has otherwise, is forgotten."""
        links = Difference.between(self.topology, topology).links
        forgotten = {*links.removed, *links.changed}
        down = self.down - set(links.removed)
        changes = {name: change for name, change in self.changes.items() if name not in forgotten}
        return UnderlayState(
            self.at_s, topology, TraceTable(topology.links), Routes.over(topology, down), down, changes
        )


class Underlay:
    """The states that follow one another, reckoned as far as they are asked for."""

    def __init__(self, experiment: Experiment, routes: Routes) -> None:
        self._experiment = experiment
        self._start = UnderlayState(0.0, experiment.topology, TraceTable(experiment.topology.links), routes)
        timed = [(event.at, event) for event in experiment.spec.events if event.at is not None]
        self._events = sorted(timed, key=_moment)
        self._reckoned = [self._first()]

    def enter(self, at_s: float, event: Event) -> None:
        """Have an event happen at a moment."""
        self._events = sorted([*self._events, (at_s, event)], key=_moment)
        self._reckoned = [state for state in self._reckoned if state.at_s < at_s] or [self._first()]

    def _first(self) -> UnderlayState:
        return self._made(self._start, [event for at_s, event in self._events if at_s <= 0])

    def _made(self, state: UnderlayState, events: list[Event]) -> UnderlayState:
        for event in events:
            state = state.after(event, self._experiment)
        return state

    def at(self, at_s: float) -> UnderlayState:
        """The state in force at a moment; one event or row later is in force at its own."""
        return next(self.since(at_s))

    def after(self, state: UnderlayState) -> float:
        """The moment from which on another state is in force; infinite where none ever is."""
        following = islice(self.since(state.at_s), 1, 2)
        return next((its.at_s for its in following), inf)

    def between(self, from_s: float, until_s: float) -> list[UnderlayState]:
        """The state in force at a moment, and those that follow it up to another."""
        return list(takewhile(lambda state: state.at_s <= until_s, self.since(from_s)))

    def since(self, from_s: float) -> Iterator[UnderlayState]:
        """The state in force at a moment, and all that follow it: endless where a trace is."""
        index = max(bisect_right(self._reckoned, from_s, key=lambda state: state.at_s) - 1, 0)
        if index > KEPT:
            del self._reckoned[: index - KEPT // 2]
            index = KEPT // 2
        while True:
            while index + 1 >= len(self._reckoned):
                if not self._reckon():
                    yield self._reckoned[index]
                    return
            if self._reckoned[index + 1].at_s > from_s:
                yield self._reckoned[index]
            index += 1

    def _reckon(self) -> bool:
        """The next state; whether there is any."""
        last = self._reckoned[-1]
        coming = [(at_s, event) for at_s, event in self._events if at_s > last.at_s]
        at_s = min([last.next_row_s, *map(_moment, coming)])
        if at_s == inf:
            return False
        self._reckoned.append(self._made(last.at(at_s), [event for moment, event in coming if moment == at_s]))
        return True


def _moment(entry: tuple[float, Event]) -> float:
    return entry[0]
