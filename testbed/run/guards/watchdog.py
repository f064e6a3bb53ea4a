"""What ends a run that cannot go on where nobody else says so, with the reason.

    the controller   does not answer, or with an error, for UNANSWERED_S
    the members      report nothing new for `longest_quiet_s` of the experiment
    the engine       does not answer (see EngineWatch)
    a disk           has no room left: that of the run's directory, or the system's (see `disk`)

What shapes and replays says by itself when it is dead, or does not answer; `Training` asks for that.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from testbed.controller.client import ControllerError
from testbed.run.errors import RunFailed
from testbed.run.guards.disk import shortage
from testbed.run.guards.engine import EngineWatch
from testbed.run.service import ControllerProcess
from testbed.spec.experiment import Experiment
from testbed.spec.topology import Worker

#: A controller answers in milliseconds, also while it plans, which it does in threads.
UNANSWERED_S = 20.0

#: Members wait so many round timeouts at most for each other before they give up by themselves: for a round's peers,
#: and for what a lost one left behind. So this ends only what they cannot end.
ROUND_TIMEOUTS = 2
#: On a host that is short of processors steps take longer than declared, and the verdict says so: up to this factor …
OVERRUN = 4.0
#: … or, where they declare less, this: a step of the largest model takes 0.2 s on a core, which many may share.
LONGEST_STEP_S = 10.0
#: Short round timeouts do not cover what the first round needs: models are made, data is loaded.
LEAST_QUIET_S = 60.0

#: What of a controller's status changes as training goes on.
SIGNS = ("state", "round", "epoch", "round_seconds", "metrics", "joined", "left", "passages")


def longest_quiet_s(experiment: Experiment) -> float:
    """How long members may report nothing new: what they may wait for each other, and a round's steps."""
    spec = experiment.spec
    step_s = max(_slowest_step_s(experiment, worker) for worker in experiment.topology.workers)
    steps_s = spec.sync.own.local_steps * max(OVERRUN * step_s, LONGEST_STEP_S)
    return max(ROUND_TIMEOUTS * spec.sync.round_timeout + steps_s, LEAST_QUIET_S)


def _slowest_step_s(experiment: Experiment, worker: Worker) -> float:
    compute = experiment.spec.compute
    slowdown = compute.slowdown.factor if compute.slowdown else 1.0
    speed = min((speed for _, speed in experiment.speeds.get(worker.name, ())), default=1.0)
    return compute.step_seconds(worker) * slowdown / speed


class Watchdog:
    """Asks the `controller` how far training is, and ends it with RunFailed when it can't go on. A context manager."""

    def __init__(self, experiment: Experiment, controller: ControllerProcess, directory: Path) -> None:
        self.controller = controller
        self._quiet_s = longest_quiet_s(experiment)
        self._engine = EngineWatch()
        self._folders = (directory, Path("/"))
        self._unanswered_since: float | None = None
        self._progressed = time.monotonic()
        self._signs: Mapping[str, Any] = {}

    def __enter__(self) -> Self:
        self._engine.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._engine.stop()

    def status(self) -> dict[str, Any] | None:
        """The controller's; None while it does not answer for a short time. RunFailed when the run can't go on,
        ControllerFailed when the controller has ended."""
        self.check_host()
        self.controller.check()
        asked = time.monotonic()
        try:
            status = self.controller.client.status()
        except ControllerError as error:
            self.controller.check()
            self._unanswered_since = self._unanswered_since or asked
            silent_s = time.monotonic() - self._unanswered_since
            if silent_s >= UNANSWERED_S:
                raise RunFailed(f"the controller has said nothing of use for {silent_s:.0f} s: {error}") from error
            return None
        self._unanswered_since = None
        self._look_for_progress(status)
        return status

    def check_host(self) -> None:
        """RunFailed when a disk is full, or the engine does not answer."""
        if reason := shortage(self._folders) or self._engine.failure:
            raise RunFailed(reason)

    def _look_for_progress(self, status: Mapping[str, Any]) -> None:
        signs = {name: status[name] for name in SIGNS}
        if signs != self._signs:
            self._signs, self._progressed = signs, time.monotonic()
        elif status["state"] == "running" and time.monotonic() - self._progressed >= self._quiet_s:
            missing = sorted(set(status["joined"]) - set(status["left"]))
            raise RunFailed(
                f"training made no progress for {self._quiet_s:.0f} s: round {status['round'] or 0} of "
                f"{status['rounds']} was the last, and these have not ended: {', '.join(missing)}"
            )
