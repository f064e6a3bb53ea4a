"""The experiment's events, made to happen at their time or round."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from testbed.controller.client import AdminClient, AdminError
from testbed.emulation.testbed import Testbed
from testbed.run import view
from testbed.run.errors import RunFailed
from testbed.spec.event import Event
from testbed.spec.experiment import Experiment


class Script:
    """Events not yet played, in the order they fall due; `swaps` records the network swaps as the summary has them."""

    def __init__(
        self,
        experiment: Experiment,
        testbed: Testbed,
        controller: AdminClient | None,
        kill: Callable[[str], None],
        tell: Callable[[str, str], None],
        before_routes: Callable[[set[str]], None],
    ) -> None:
        """`controller` is None where members are not ours. `kill` ends a worker; `tell` hears what happens (kind,
        target); `before_routes` is called in a swap when its new links, which it is given, are built and nothing passes
        them yet."""
        self._experiment = experiment
        self._network = testbed.network
        self._replay = testbed.replay
        self._controller = controller
        self._kill = kill
        self._tell = tell
        self._before_routes = before_routes
        self._waiting = list(experiment.spec.events)
        self._told_s = 0.0
        self.swaps: list[dict[str, Any]] = []

    @property
    def waiting(self) -> list[str]:
        """The events that have not happened, as one would name them."""
        return [words(event) for event in self._waiting]

    def play(self, elapsed_s: float, round_: int) -> None:
        """Make happen what is due, `elapsed_s` seconds into training with `round_` rounds complete."""
        due = [event for event in self._waiting if _is_due(event, elapsed_s, round_)]
        for event in sorted(due, key=lambda event: elapsed_s if event.at is None else event.at):
            self._waiting.remove(event)
            try:
                self._make_happen(event)
            except KeyError as error:
                raise RunFailed(f"the event {words(event)} cannot happen: {error.args[0]}") from error
            except AdminError as error:
                raise RunFailed(f"the controller did not take the event {words(event)}: {error}") from error
        if self._is_oracle and elapsed_s - self._told_s >= self._experiment.spec.controller.period:
            self._told_s = elapsed_s
            with suppress(AdminError):  # busy; told again after another period
                self._inform()

    @property
    def _is_oracle(self) -> bool:
        """Whether the controller is told what links truly carry."""
        return self._controller is not None and self._experiment.spec.controller.knowledge == "oracle"

    def _make_happen(self, event: Event) -> None:
        if event.change:
            self._network.links_in_force.change(event.change.scaled(self._experiment.spec.scale))
            self._tell("change", event.change.link)
        for kind, pair in (("down", event.down), ("up", event.up)):
            if pair:
                self._network.take(*pair, up=kind == "up")
                self._tell(kind, "-".join(pair))
                self._inform()
        if event.kill:
            self._kill(event.kill)
            self._tell("kill", event.kill)
        if event.graph and self._controller is not None:
            self._controller.change_graph(event.graph)
            self._tell("graph", event.graph)
        if event.swap:
            self._swap(event.swap)

    def _swap(self, name: str) -> None:
        requested = time.time()
        topology = self._experiment.networks[name]
        done = self._network.swap(topology, self._before_routes)
        self._replay.follow(topology.links.values())
        self._inform()
        self._tell("swap", topology.name)
        changes = {"added": done.added, "removed": done.removed, "changed": done.changed}
        self.swaps.append(
            {"kind": "network", "target": topology.name, "file": name, "requested_s": requested, **changes}
        )
        self.swaps[-1]["active_s"] = requested + done.seconds

    def _inform(self) -> None:
        """Tell the controller of the underlay as it is declared to be now: it is to measure what traces do, unless it
        is an oracle."""
        if self._controller is None:
            return
        topology = self._network.topology
        down = self._network.links_in_force.down
        states = self._network.links_in_force.states() if self._is_oracle else view.declared_states(topology)
        states = {name: state for name, state in states.items() if name not in down}
        links = view.physical_links(topology, states)
        self._controller.change_network(links, view.member_routes(topology, self._network.routes))


def _is_due(event: Event, elapsed_s: float, round_: int) -> bool:
    return event.at <= elapsed_s if event.at is not None else (event.round or 0) <= round_


def words(event: Event) -> str:
    """The event as one would name it."""
    moment = f"at {event.at:g} s" if event.at is not None else f"in round {event.round}"
    for kind in ("down", "up"):
        if pair := getattr(event, kind):
            return f"{kind} {'-'.join(pair)} {moment}"
    if event.kill:
        return f"kill {event.kill} {moment}"
    if event.graph:
        return f"graph {event.graph} {moment}"
    return f"change of {event.change.link} {moment}" if event.change else f"swap to {event.swap} {moment}"
