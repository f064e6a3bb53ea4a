"""What ends a run that cannot go on where nobody else says so, with the reason.

    the controller   does not answer, or with an error, for UNANSWERED_S
    the members      report nothing new for `longest_quiet_s` of the experiment
    the engine       does not answer (see EngineWatch)
    a disk           has no room left: that of the run's directory, or the system's (see `disk`)

What shapes and replays says by itself when it is dead, or does not answer; `Training` asks for that.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from testbed.controller.client import ControllerError
from testbed.emulation.containers import engine
from testbed.run.controller_process import ControllerProcess
from testbed.run.errors import RunFailed
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


#: An engine answers a ping in a millisecond. One that is restarted is away for some seconds, and containers may outlive
#: that.
SILENT_S = 20.0

#: How often it is asked, and how long is waited for an answer.
ASK_S = 2.0
ANSWER_S = 5


class EngineWatch:
    """Asks from `start` to `stop`. Silence begins with an answer that does not come: while this process itself is
    stopped, nobody asks."""

    def __init__(self) -> None:
        self._closed = threading.Event()
        self._silent_since: float | None = None
        self._complaint = ""
        self._thread = threading.Thread(target=self._ask, name="engine watch", daemon=True)

    @property
    def failure(self) -> str | None:
        """Why a run can't go on; None while the engine answers, or has been silent for a short time."""
        since = self._silent_since
        if since is None or (silent_s := time.monotonic() - since) < SILENT_S:
            return None
        return f"the Docker engine at {engine.address()} has not answered for {silent_s:.0f} s ({self._complaint})"

    def start(self) -> None:
        """Begin to ask."""
        self._thread.start()

    def stop(self) -> None:
        """End it, or leave it to its last answer."""
        self._closed.set()
        self._thread.join(ANSWER_S)

    def _ask(self) -> None:
        while not self._closed.wait(ASK_S):
            asked = time.monotonic()
            try:
                client = engine.client_of(engine.address(), timeout=ANSWER_S)
                try:
                    client.ping()
                finally:
                    client.close()
                self._silent_since = None
            except engine.ENGINE_ERRORS as error:
                self._complaint = str(error)
                self._silent_since = self._silent_since or asked


#: What is left below this is for the run's summary and its page, for its workers' logs of 4 MiB each at most, and for
#: the host.
LEAST_FREE_BYTES = 64 << 20
#: The same for files, of which a run has some hundred.
LEAST_FREE_FILES = 1000
#: What begins with this says what is short.
DISK_OF = "the disk of "


def check_room(folders: Iterable[Path]) -> None:
    """Raise RunFailed where something is short on their file systems."""
    if short := shortage(folders):
        raise RunFailed(short)


def shortage(folders: Iterable[Path]) -> str | None:
    """What is short on the file systems of these folders, and what to do; None where there is enough."""
    for folder in folders:
        found = os.statvfs(folder)
        free = found.f_bavail * found.f_frsize
        if free < LEAST_FREE_BYTES:
            return (
                f"{DISK_OF}{folder} is full: {free / 1e6:.1f} MB are free, a run needs "
                f"{LEAST_FREE_BYTES / 1e6:.1f} MB; free some, or run in another folder"
            )
        if found.f_files and found.f_favail < LEAST_FREE_FILES:  # some file systems count none
            return (
                f"{DISK_OF}{folder} has room for {found.f_favail} more files, a run needs {LEAST_FREE_FILES}; "
                "remove some, or run in another folder"
            )
    return None
