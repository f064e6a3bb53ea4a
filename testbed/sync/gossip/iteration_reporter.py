"""What a member tells of its iterations: one Report for each that it has entered."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from testbed.protocol import ControlMessage, PromiseGraph, Report
from testbed.sync.clock import SYSTEM, Clock
from testbed.sync.gossip.message_queue import Mailbox

#: Paths are sampled this often: a system call for each peer.
SAMPLE_S = 0.5


@dataclass(slots=True)
class StepFigures:
    """What local steps took since the last report, in seconds, `late_s` the worst of them; metrics as last seen, and
    how many `steps` they were."""

    compute_s: float = 0.0
    paced_s: float = 0.0
    late_s: float = 0.0
    metrics: Mapping[str, float | None] = field(default_factory=dict)


class IterationReporter:
    """Follows a driver's member; `figures` says what its steps took since it was asked last.

    A report's round is the iteration that was entered, its times those of the one before; so there is none of the
    `first`. `waited` sums up, by peer, the seconds of that iteration which ended with a message of that peer.
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
        """It has waited for so long until a message of `peer` let it go on."""
        self._waited[peer] += seconds  # type: ignore[assignment]

    def promised(self, end: int) -> None:
        """It enters no iteration from `end` on until it hears of another graph."""
        self._tell(PromiseGraph(self._member, end))

    def advanced(self, iteration: int) -> None:
        """It has entered `iteration`."""
        at_s, now = self._clock.unix(), self._clock.monotonic()
        if iteration > self._first:
            self._tell(self._report(iteration, at_s, now))
        self._entered = now

    def _report(self, iteration: int, at_s: float, now: float) -> Report:
        """What is told at the Unix time `at_s`, by which the controller orders all members' reports; how long the
        iteration took comes from the monotonic clock's `now`, for the other one may be set meanwhile."""
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
            sent_bytes=int(sent),
            received_bytes=int(received),
            send_s=sending_s,
            lost=0,
            duplicated=0,
            waited=waited,
            peers=self._mailbox.queue.samples() if due else (),
            metrics=figures.metrics,
        )

    def _totals(self) -> tuple[float, float, float]:
        post, inbox = self._mailbox.queue, self._mailbox.inbox
        return float(post.sent_bytes.total()), float(inbox.received_bytes.total()), post.sending_s()
