"""Plays the experiment's events at their time or round."""

from __future__ import annotations

from contextlib import suppress

from testbed.api.requests import ApiProblem, ChangeGraph, KillWorker
from testbed.controller.client import ControllerError
from testbed.link import pair_name
from testbed.run.changes import Changes
from testbed.run.errors import RunFailed
from testbed.spec.event import Event
from testbed.spec.experiment import Experiment


class EventPlayer:
    """Plays the events of an experiment's file. With `knowledge: oracle`, also sends the controller the links' states.

    Args:
        experiment: The experiment, with its events.
        changes: Carries them out.
    """

    def __init__(self, experiment: Experiment, changes: Changes) -> None:
        self._experiment = experiment
        self._changes = changes
        self._waiting = list(experiment.spec.events)
        self._informed_s = 0.0

    @property
    def waiting(self) -> list[str]:
        """The events that have not happened, in words."""
        return [event_text(event) for event in self._waiting]

    def play(self, elapsed_s: float, round_: int) -> None:
        """Carry out the events that are due.

        Args:
            elapsed_s: Seconds since training began; a paused replay stops this clock.
            round_: The number of completed rounds.

        Raises:
            RunFailed: An event can't be carried out, or the controller rejected it.
        """
        due = [event for event in self._waiting if _is_due(event, elapsed_s, round_)]
        for event in sorted(due, key=lambda event: elapsed_s if event.at is None else event.at):
            self._waiting.remove(event)
            try:
                self._carry_out(event)
            except (KeyError, ApiProblem) as error:
                why = error.args[0] if isinstance(error, KeyError) else error
                raise RunFailed(f"the event {event_text(event)} can't happen: {why}", rule="event") from error
            except ControllerError as error:
                text = f"the controller rejected the event {event_text(event)}: {error}"
                raise RunFailed(text, rule="event") from error
        controller = self._experiment.spec.controller
        if controller.knowledge == "oracle" and elapsed_s - self._informed_s >= controller.period:
            self._informed_s = elapsed_s
            with suppress(ControllerError):  # it is busy; the next period sends the states again
                self._changes.inform()

    def _carry_out(self, event: Event) -> None:
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


def event_text(event: Event) -> str:
    """Return an event in words, e.g. `down paris-tokyo at 30 s`."""
    moment = f"at {event.at:g} s" if event.at is not None else f"in round {event.round}"
    if event.down or event.up:
        return f"{'down' if event.down else 'up'} {pair_name(*event.pair)} {moment}"
    if event.kill:
        return f"kill {event.kill} {moment}"
    if event.graph:
        return f"graph {event.graph} {moment}"
    return f"change of {event.change.link} {moment}" if event.change else f"swap to {event.swap} {moment}"
