"""The experiment's events, made to happen at their time or round."""

from __future__ import annotations

from contextlib import suppress

from testbed.api.requests import ApiProblem, ChangeGraph, KillWorker
from testbed.controller.client import ControllerError
from testbed.link import pair_name
from testbed.run.changes import Changes
from testbed.run.errors import RunFailed
from testbed.spec.event import Event
from testbed.spec.experiment import Experiment


class Script:
    """Events not yet played, in the order they fall due. An oracle is told what links carry in each of its periods."""

    def __init__(self, experiment: Experiment, changes: Changes) -> None:
        self._experiment = experiment
        self._changes = changes
        self._waiting = list(experiment.spec.events)
        self._told_s = 0.0

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
                raise RunFailed(f"the event {words(event)} cannot happen: {error.args[0]}", rule="event") from error
            except ApiProblem as error:
                raise RunFailed(f"the event {words(event)} cannot happen: {error}", rule="event") from error
            except ControllerError as error:
                raise RunFailed(
                    f"the controller did not take the event {words(event)}: {error}", rule="event"
                ) from error
        controller = self._experiment.spec.controller
        if controller.knowledge == "oracle" and elapsed_s - self._told_s >= controller.period:
            self._told_s = elapsed_s
            with suppress(ControllerError):  # busy; told again after another period
                self._changes.inform()

    def _make_happen(self, event: Event) -> None:
        changes = self._changes
        if event.change:
            changes.change_links([event.change.scaled(self._experiment.spec.scale)], [], "file")
        if event.down or event.up:
            changes.change_links([], [(*event.pair, event.up is not None)], "file")
        if event.kill:
            changes.do(KillWorker(worker=event.kill), "file")
        if event.graph:
            changes.do(ChangeGraph(kind=event.graph), "file")
        if event.swap:
            changes.swap(self._experiment.networks[event.swap], event.swap, "file")


def _is_due(event: Event, elapsed_s: float, round_: int) -> bool:
    return event.at <= elapsed_s if event.at is not None else (event.round or 0) <= round_


def words(event: Event) -> str:
    """The event as one would name it."""
    moment = f"at {event.at:g} s" if event.at is not None else f"in round {event.round}"
    if event.down or event.up:
        return f"{'down' if event.down else 'up'} {pair_name(*event.pair)} {moment}"
    if event.kill:
        return f"kill {event.kill} {moment}"
    if event.graph:
        return f"graph {event.graph} {moment}"
    return f"change of {event.change.link} {moment}" if event.change else f"swap to {event.swap} {moment}"
