"""The log of a running experiment: events, link states, samples and plans, kept in its directory and shown live."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rich.markup import escape

from testbed.api.models import By
from testbed.controller.run_records import keep_plans
from testbed.emulation.links.links import link_record, unix_seconds
from testbed.link import LinkState
from testbed.plan import Plan
from testbed.run.conclusion.link_counters import seconds_between
from testbed.run.directory import RunDirectory
from testbed.run.terminal.display import Display, Snapshot
from testbed.telemetry.rate_steps import RateSteps


class RunLog:
    """Records what happens in a run, shows it in the terminal, and keeps it for the API.

    `put_in_force` and `sampled` may be called from any thread.

    Attributes:
        events: The events so far, in the form of `events.jsonl`, with the rate steps found in traces.
        plans: Each plan that was seen and the swap that brought it, by epoch.
        status: The controller's newest status.
        curves: The figures that a command's programs printed, by number, in the form of `curves.jsonl`.
        announce: Called after each addition.
    """

    def __init__(self, directory: RunDirectory, display: Display) -> None:
        self.directory = directory
        self.display = display
        self._samples: tuple[Mapping[str, Any], ...] = ()  # the last two: all would be 9 MiB an hour
        self._lines: list[str] = []  # the events as the terminal shows them, in rich's markup
        self._told = 0  # of these lines; the display may have printed those of earlier runs
        self._states: dict[str, LinkState] = {}
        self._steps = RateSteps()
        self._stepping = threading.Lock()  # samples come on a thread of their own
        self.events: list[dict[str, Any]] = []
        self.plans: dict[int, dict[str, Any]] = {}
        self.status: Mapping[str, Any] = {}
        self.curves: Mapping[str, Mapping[str, Any]] = {}
        self.announce: Callable[[], None] = lambda: None
        self._epochs_logged: set[int] = set()
        self._membership_logged = 0

    def put_in_force(self, at_s: float, link: str, state: LinkState) -> None:
        """Record that a link's state changed at `at_s` (monotonic seconds)."""
        self._states[link] = state
        self.directory.append("links.jsonl", link_record(unix_seconds(at_s), link, state))
        self.announce()

    def sampled(self, sample: Mapping[str, Any]) -> None:
        """Record a sample, and show the rate steps that it completes as events.

        Rate steps are not written to `events.jsonl`: they are computed from `links.jsonl`.
        """
        self._samples = (*self._samples[-1:], sample)
        self.directory.append("traffic.jsonl", sample)
        rates = {link: state.rate_bps if state.up else None for link, state in self._states.copy().items()}
        with self._stepping:
            steps = self._steps.look(sample["at_s"], rates, sample["bytes"])
        for step in steps:
            self.events.append(step.to_event())
            self._lines.append(str(step))
        self.announce()

    def happened(
        self,
        kind: str,
        target: str,
        by: By | None = None,
        at_s: float | None = None,
        changed: Mapping[str, float | None] | None = None,
        removed: Sequence[str] = (),
    ) -> None:
        """Record an event of the network or of a member.

        Args:
            kind: The event's kind, as in an experiment's file.
            target: The link, the pair, the worker or the network.
            by: `hand` if a person asked for it.
            at_s: The event's time (Unix seconds); None is now.
            changed: All values of a link that override its file or trace after this change.
            removed: The links that a network swap removed.
        """
        self._lines.append(escape(f"{kind} {target}") + (" by hand" if by == "hand" else ""))
        record: dict[str, Any] = {"at_s": time.time() if at_s is None else at_s, "kind": kind, "target": target}
        record |= {"by": by} if by == "hand" else {}
        record |= {"changed": dict(changed)} if changed is not None else {}
        if kind in ("change", "swap"):
            with self._stepping:
                self._steps.forget([target] if kind == "change" else None)
        for link in removed:
            self._states.pop(link, None)
            self.directory.append("links.jsonl", {"at_s": record["at_s"], "link": link, "removed": True})
        self.events.append(record)
        self.directory.append("events.jsonl", record)
        self.announce()

    def tell(self) -> None:
        """Print the events that were not printed yet, for a run whose progress is not shown."""
        fresh = self._lines[self._told :]
        self._told += len(fresh)
        for line in fresh:
            self.display.say(f"  {line}")

    @property
    def by_hand(self) -> list[dict[str, Any]]:
        """The events that people asked for; the run's files do not have them."""
        return [event for event in self.events if event.get("by") == "hand"]

    def show(self, status: Mapping[str, Any]) -> None:
        """Show the status of a training without a controller on the page."""
        self.status = status
        self.announce()

    def follow(self, status: Mapping[str, Any], states: Mapping[str, LinkState]) -> None:
        """Log what is new in the controller's status, and show it with the links' states."""
        self.keep(status)
        self.display.show(self._snapshot(status, states))

    def keep(self, status: Mapping[str, Any]) -> None:
        """Log what is new in the controller's status, and show it on the page."""
        self.status = status
        keep_plans(self.plans, status)
        for swap in status["swaps"]:
            if swap["active_s"] is None or swap["epoch"] in self._epochs_logged:
                continue
            self._epochs_logged.add(swap["epoch"])
            why = escape(swap["reason"])
            self._lines.append(f"plan {swap['epoch']} in force from round {swap['active_round']}: {why}")
        for event in status["membership_events"][self._membership_logged :]:
            self._membership_logged += 1
            self.happened(event["kind"], event["member"], at_s=event["at_s"])
        self.announce()

    def _snapshot(self, status: Mapping[str, Any], states: Mapping[str, LinkState]) -> Snapshot:
        metrics = status["metrics"]
        return Snapshot(
            round=status["round"] or 0,
            rounds=status["rounds"],
            loss=metrics.get("loss"),
            accuracy=metrics.get("accuracy"),
            seconds_per_round=status["round_seconds"],
            plan=Plan.from_json(status["plan"]) if status["plan"] else None,
            states=states,
            throughput=self._throughput(),
            events=tuple(self._lines),
        )

    def _throughput(self) -> dict[str, float]:
        if len(samples := self._samples) < 2:
            return {}
        before, after = samples
        seconds = seconds_between(before, after)
        return {
            link: (count - before["bytes"].get(link, count)) * 8 / seconds for link, count in after["bytes"].items()
        }
