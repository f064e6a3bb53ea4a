"""A member's reports to the controller: one for each iteration that it has entered."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from testbed.protocol import ControlMessage, Lost, PromiseGraph, Report
from testbed.schema import brief
from testbed.sync.clock import SYSTEM, Clock
from testbed.sync.gossip.mailbox import Mailbox

#: Seconds between two samples of the paths, which cost a system call for each peer.
SAMPLE_S = 0.5


@dataclass(slots=True)
class StepFigures:
    """Figures of the local steps since the last report."""

    #: Seconds for which the steps computed.
    compute_s: float = 0.0
    #: Seconds for which the steps were held back to a declared speed.
    paced_s: float = 0.0
    #: Seconds by which the worst step ended after its declared end.
    late_s: float = 0.0
    #: The newest metrics by name, `steps` (the number of the steps) among them.
    metrics: Mapping[str, float | None] = field(default_factory=dict)
    #: The number of the steps, and of those that took longer than declared.
    steps: int = 0
    late_steps: int = 0


class IterationReporter:
    """Observes a driver's member, and reports each iteration to the controller.

    A report's round is the entered iteration, and its times are those of the iteration before; so there is no report of
    the first iteration. A report's `waited` maps each peer to the seconds of waits that a message of that peer ended.
    """

    def __init__(
        self,
        member: str,
        first: int,
        mailbox: Mailbox,
        figures: Callable[[], StepFigures],
        tell: Callable[[ControlMessage], None],
        clock: Clock = SYSTEM,
    ) -> None:
        """Begin to observe a member.

        Args:
            member: The member's name.
            first: The iteration in which it begins.
            mailbox: Its mailbox, which counts bytes.
            figures: Returns the figures of the local steps since the last call.
            tell: Sends a message to the controller.
            clock: Measures iterations, and gives the reports' times.
        """
        self._member = member
        self._first = first
        self._mailbox = mailbox
        self._figures = figures
        self._tell = tell
        self._clock = clock
        self._waited: Counter[str] = Counter()
        self._entered = clock.monotonic()
        self._sampled = -math.inf
        self._before = self._totals()

    def waited(self, seconds: float, peer: str) -> None:
        """Add seconds of waiting that ended with a message of `peer`."""
        self._waited[peer] += seconds  # type: ignore[assignment]

    def promised(self, end: int) -> None:
        """Send the member's promise to enter no iteration from `end` on."""
        self._tell(PromiseGraph(self._member, end))

    def lost(self, peer: str, why: str) -> None:
        """Tell the controller that the connections to a peer have ended."""
        self._tell(Lost(self._member, peer, brief(why), generation=0))

    def advanced(self, iteration: int) -> None:
        """Report the iteration before, unless the member has just begun."""
        at_s, now = self._clock.unix(), self._clock.monotonic()
        if iteration > self._first:
            self._tell(self._report(iteration, at_s, now))
        self._entered = now

    def _report(self, iteration: int, at_s: float, now: float) -> Report:
        """Return the report that an iteration was entered, with the figures since the last report.

        Args:
            iteration: The entered iteration.
            at_s: The Unix time, by which the controller orders the reports of all members.
            now: The time of the monotonic clock, by which durations are measured: it can't be set, unlike Unix time.
        """
        figures, totals, before = self._figures(), self._totals(), self._before
        waited, self._waited, self._before = dict(self._waited), Counter(), totals
        due = now - self._sampled >= SAMPLE_S
        self._sampled = now if due else self._sampled
        sent, received, sending_s = (after - earlier for after, earlier in zip(totals, before, strict=True))
        return Report(
            member=self._member,
            round=iteration,
            epoch=0,
            started_s=at_s - (now - self._entered),
            finished_s=at_s,
            compute_s=figures.compute_s,
            paced_s=figures.paced_s,
            late_s=figures.late_s,
            steps=figures.steps,
            late_steps=figures.late_steps,
            sent_bytes=int(sent),
            received_bytes=int(received),
            send_s=sending_s,
            lost=0,
            duplicated=0,
            waited=waited,
            peers=self._mailbox.outbox.samples() if due else (),
            metrics=figures.metrics,
        )

    def _totals(self) -> tuple[float, float, float]:
        mailbox = self._mailbox
        sent, received = mailbox.sent_bytes.total(), mailbox.inbox.received_bytes.total()
        return float(sent), float(received), mailbox.outbox.sending_s()
