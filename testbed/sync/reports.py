"""A member's reports to the controller: of each round, and during long ones.

The latter let the controller react before a slow round ends.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from testbed.protocol import FragmentDrift, PeerSample, Report, Train
from testbed.sync.allreduce import RoundResult
from testbed.sync.clock import SYSTEM, Clock
from testbed.sync.executor import start
from testbed.sync.transport import CLOSE_S


@dataclass(frozen=True, slots=True)
class StepReport:
    """The training loop's part of a report: the steps before a round."""

    #: Figures to keep, such as the loss.
    metrics: Mapping[str, float | None] = field(default_factory=dict)
    #: Seconds for which the steps computed.
    compute_s: float = 0.0
    #: Seconds for which the steps were held back to a declared speed.
    paced_s: float = 0.0
    #: Seconds by which the worst step ended after its declared end.
    late_s: float = 0.0
    #: The member's distances from the mean in the rounds that merged the steps.
    drift: tuple[FragmentDrift, ...] = ()
    #: The number of the steps.
    steps: int = 0
    #: The number of the steps that took longer than declared.
    late_steps: int = 0


class RoundReports:
    """The completed rounds of a member that are not reported yet. Any thread may call.

    Args:
        samples: Returns the measurements of the paths to peers since its last call.
        arrivals: Returns the packet trains from each peer since its last call, by which paths are measured.
        tell: Sends a report to the controller.
    """

    def __init__(
        self,
        member: str,
        samples: Callable[[], tuple[PeerSample, ...]],
        arrivals: Callable[[], Mapping[str, tuple[Train, ...]]],
        tell: Callable[[Report], None],
    ) -> None:
        self._member = member
        self._samples = samples
        self._arrivals = arrivals
        self._tell = tell
        self._unreported: list[RoundResult] = []
        self._guard = threading.Lock()

    def add(self, result: RoundResult) -> None:
        """Add a completed round."""
        with self._guard:
            self._unreported.append(result)

    def tell(self, steps: StepReport | None = None, keep: int = 0) -> bool:
        """Send the reports of all but the newest rounds.

        Args:
            steps: The steps before the last of the reported rounds.
            keep: The number of the newest rounds to keep for a later call.

        Returns:
            True if a round was reported.
        """
        with self._guard:
            count = max(0, len(self._unreported) - keep)
            reported, self._unreported = self._unreported[:count], self._unreported[count:]
        for result in reported[:-1]:
            self._tell(self._report(result, StepReport(), (), {}))
        for result in reported[-1:]:
            self._tell(self._report(result, steps or StepReport(), self._samples(), self._arrivals()))
        return bool(reported)

    def _report(
        self,
        result: RoundResult,
        steps: StepReport,
        peers: tuple[PeerSample, ...],
        arrivals: Mapping[str, tuple[Train, ...]],
    ) -> Report:
        tally = result.tally
        return Report(
            member=self._member,
            round=result.round,
            epoch=result.epoch,
            started_s=result.started_s,
            finished_s=result.finished_s,
            compute_s=steps.compute_s,
            paced_s=steps.paced_s,
            late_s=steps.late_s,
            steps=steps.steps,
            late_steps=steps.late_steps,
            sent_bytes=tally.sent_bytes,
            received_bytes=tally.received_bytes,
            send_s=tally.send_s,
            receive_s=tally.receive_s,
            add_s=tally.add_s,
            lost=result.lost,
            duplicated=result.duplicated,
            waited=tally.waited,
            peers=peers,
            arrivals=arrivals,
            metrics=dict(steps.metrics),
            drift=steps.drift,
            slices=result.slices if len(result.slices) > 1 else (),
        )


#: Seconds between two reports. All members report at multiples of it, as far as their clocks agree, because the
#: controller compares reports of the same time.
EACH_S = 0.25


class ProgressReporter:
    """Calls a function at each multiple of EACH_S at which a round runs.

    Any thread may call the methods.

    Args:
        report: The function, called on the reporter's thread.
    """

    def __init__(self, report: Callable[[], None], clock: Clock = SYSTEM) -> None:
        self._report = report
        self._clock = clock
        self._changed = threading.Condition()
        self._rounds = 0
        self._closed = False
        self._thread: threading.Thread | None = None

    def start(self, member: str) -> None:
        """Start to report, on a thread. Raises SyncError if no other thread can be started."""
        thread = threading.Thread(target=self.run, name=f"{member}: progress", daemon=True)
        start(thread)
        self._thread = thread

    def round_began(self) -> None:
        """Record that a round began; the previous one may still be running."""
        with self._changed:
            self._rounds += 1
            self._changed.notify()

    def round_ended(self) -> None:
        """Record that a round ended."""
        with self._changed:
            self._rounds -= 1

    def close(self) -> None:
        """Stop reporting. Waits up to CLOSE_S for a report that is being made."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join(CLOSE_S)

    def run(self) -> None:
        """Report until `close`."""
        while self._wait():
            self._report()

    def _wait(self) -> bool:
        """Wait until a report is due. Returns False after `close`."""
        with self._changed:
            while not self._closed:
                self._clock.wait_for(self._changed, lambda: self._closed or self._rounds > 0)
                left_s = EACH_S - self._clock.unix() % EACH_S
                idle_or_closed = self._clock.wait_for(self._changed, lambda: self._closed or not self._rounds, left_s)
                if not idle_or_closed:
                    return True
            return False
