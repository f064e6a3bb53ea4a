"""The experiment's events on simulated time: on record, and told to the controller, as run/script does it live."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from testbed.emulation.network.difference import Difference
from testbed.link import pair_name
from testbed.run import view
from testbed.run.script import words
from testbed.simulation.network import NetworkState
from testbed.simulation.stage import Stage
from testbed.spec.event import Event
from testbed.spec.experiment import Experiment

#: A run asks each 0.3 s how many rounds are complete, and looks each 0.1 s at what is due: on average so much later.
LOOK_S = 0.2


class Tell(Protocol):
    """Hears of an event; see SimulatedScript."""

    def __call__(self, kind: str, target: str, changed: Mapping[str, float | None] | None = None) -> None: ...


class SimulatedScript:
    """Has events happen; `swaps` are those of the network, as the summary has them. `tell` hears of each its kind, its
    target and, of a change of a link, all values that are in force over its file or trace by then."""

    def __init__(self, experiment: Experiment, stage: Stage, tell: Tell) -> None:
        self._experiment = experiment
        self._stage = stage
        self._tell = tell
        self._waiting = list(experiment.spec.events)
        self.swaps: list[dict[str, Any]] = []
        self.changed: Callable[[], None] = lambda: None  # is told that the network has become another
        for event in sorted(self._waiting, key=lambda event: event.at or 0.0):
            if event.at is not None:
                self._enter(event.at, event)
        if self._is_oracle:
            self._tell_truth()

    @property
    def waiting(self) -> Sequence[str]:
        """The events that have not happened, as one would name them."""
        return [words(event) for event in self._waiting]

    def round_over(self, number: int, at_s: float) -> None:
        """A round is complete since then: what waited for it is due soon."""
        for event in self._waiting:
            if event.round == number:
                self._stage.network.schedule(at_s + LOOK_S, event)
                self._enter(at_s + LOOK_S, event)

    @property
    def _is_oracle(self) -> bool:
        return self._experiment.spec.controller.knowledge == "oracle"

    def _enter(self, at_s: float, event: Event) -> None:
        self._stage.queue.schedule(at_s, lambda: self._happen(at_s, event))

    def _happen(self, at_s: float, event: Event) -> None:
        """The network has it already."""
        self._waiting.remove(event)
        self.changed()
        if event.change:
            link = event.change.link
            self._tell("change", link, self._stage.network.at(at_s).changes[link].values())
            return
        if event.down or event.up:
            self._tell("down" if event.down else "up", pair_name(*event.pair))
        if event.swap:
            self._swapped(event.swap)
        self._inform(self._stage.network.at(at_s))

    def _swapped(self, name: str) -> None:
        topology, now_s = self._experiment.networks[name], self._stage.queue.clocks.unix()
        files = [swap["file"] for swap in self.swaps]
        before = self._experiment.networks[files[-1]] if files else self._experiment.topology
        links = Difference.between(before, topology).links
        changes = {"added": links.added, "removed": links.removed, "changed": links.changed}
        moments = {"requested_s": now_s, "active_s": now_s}
        self.swaps.append({"kind": "network", "target": topology.name, "file": name, **changes, **moments})
        self._tell("swap", topology.name)

    def _tell_truth(self) -> None:
        """Tell the controller what links truly carry, now and each period from now on."""
        queue = self._stage.queue
        period_s = self._experiment.spec.controller.period
        queue.schedule(queue.clocks.now_s + period_s, self._tell_truth)
        if queue.clocks.now_s:
            self._inform(self._stage.network.at(queue.clocks.now_s))

    def _inform(self, state: NetworkState) -> None:
        """Tell the controller of the network: as it is declared to be, or as it is where the controller is an
        oracle."""
        states = state.states if self._is_oracle else view.declared_states(state.topology)
        links = view.physical_links(
            state.topology, {name: its for name, its in states.items() if name not in state.down}
        )
        controller = self._stage.controller
        controller.coordinator.change_network(links, view.member_routes(state.topology, state.routes))
        controller.proceed()
