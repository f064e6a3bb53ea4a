"""The checks that end a run which can't continue.

    the controller   does not answer, or answers with an error, for UNANSWERED_S
    the members      report nothing new for `longest_quiet_s` of the experiment
    the engine       does not answer for SILENT_S (EngineWatch)
    a disk           has less than LEAST_FREE_BYTES: that of the run's directory, or the system's (`shortage`)
    the directory    of the run was removed (`shortage`)
    another host     is cut off from the controller (`broken`)

The shaper and the replay report their own failures; `Training` asks them.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

import docker

from testbed.controller.client import ControllerError
from testbed.emulation.containers import engine
from testbed.run.controller_process import ControllerProcess
from testbed.run.errors import RunFailed
from testbed.spec.experiment import Experiment
from testbed.spec.topology import Worker

#: A controller answers in milliseconds, also while it plans: it plans in threads.
UNANSWERED_S = 20.0

#: Members give up by themselves after at most two round timeouts: one for a round's peers, one for the data of a lost
#: peer. So the watchdog ends only runs whose members can't give up.
ROUND_TIMEOUTS = 2
#: On a host that is short of processors, steps may take up to this many times as long as declared; the verdict says so.
OVERRUN = 4.0
#: A step may always take this long: a step of the largest model takes 0.2 s on one core, which many workers may share.
LONGEST_STEP_S = 10.0
#: The first round also makes models and loads data, so a short round timeout does not shorten the limit below this.
LEAST_QUIET_S = 60.0

#: The fields of a controller's status that change as training progresses.
SIGNS = ("state", "round", "epoch", "round_seconds", "metrics", "joined", "left", "membership_events")


def longest_quiet_s(experiment: Experiment) -> float:
    """Return the seconds for which members may report nothing new: their waits for each other, and a round's steps."""
    spec = experiment.spec
    step_s = max(_slowest_step_s(experiment, worker) for worker in experiment.topology.workers)
    steps_s = spec.sync.own.local_steps * max(OVERRUN * step_s, LONGEST_STEP_S)
    return max(ROUND_TIMEOUTS * spec.sync.round_timeout + steps_s, LEAST_QUIET_S)


def _slowest_step_s(experiment: Experiment, worker: Worker) -> float:
    compute = experiment.spec.compute
    slowdown = compute.slowdown.factor if compute.slowdown else 1.0
    speed = min((speed for _, speed in experiment.speeds.get(worker.name, ())), default=1.0)
    return compute.step_seconds(worker) * slowdown / speed


#: An engine answers a ping in a millisecond. One that is restarted is silent for some seconds, which containers may
#: survive.
SILENT_S = 20.0

#: Seconds between two pings, and the timeout of one.
ASK_S = 2.0
ANSWER_S = 5


class EngineWatch:
    """Pings the Docker engine from a thread while the context is open, so that a hung engine does not block the run.

    The silence is counted from the first ping without an answer; while this process itself is stopped, none is sent.
    """

    def __init__(self) -> None:
        self._closed = threading.Event()
        self._client: docker.DockerClient | None = None
        self._silent_since: float | None = None
        self._complaint = ""
        self._thread = threading.Thread(target=self._ask, name="engine watch", daemon=True)

    @property
    def failure(self) -> str | None:
        """The reason why the run can't continue, or None while the silence is shorter than SILENT_S."""
        since = self._silent_since
        if since is None or (silent_s := time.monotonic() - since) < SILENT_S:
            return None
        return f"the Docker engine at {engine.address()} has not answered for {silent_s:.0f} s ({self._complaint})"

    def __enter__(self) -> Self:
        """Start to ping the Docker engine, on a thread."""
        with suppress(OSError, *engine.ENGINE_ERRORS):  # the thread tries again
            self._client = self._connect()  # here: it changes the environment, which other threads may copy
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop the pings. A thread that still waits for the engine after ANSWER_S is left to end by itself."""
        self._closed.set()
        self._thread.join(ANSWER_S)
        if self._client is not None:
            self._client.close()

    def _connect(self) -> docker.DockerClient:
        return engine.client_of(engine.address(), timeout=ANSWER_S)

    def _ask(self) -> None:
        while not self._closed.wait(ASK_S):
            asked = time.monotonic()
            try:
                self._client = self._client or self._connect()
                self._client.ping()
                self._silent_since = None
            except (OSError, *engine.ENGINE_ERRORS) as error:  # OSError: no file may be opened, say
                self._complaint = str(error)
                self._silent_since = self._silent_since or asked


#: The space that a run leaves for its summary and page, its workers' logs (4 MiB each at most) and the host.
LEAST_FREE_BYTES = 64 << 20
#: The free files (inodes) that a run needs; it makes some hundred.
LEAST_FREE_FILES = 1000
#: The beginning of a shortage's text.
DISK_OF = "the disk of "
#: The rule of the error that a broken part of the host ends a run with.
HOST = "host"


def check_machine(folders: Iterable[Path], engine_watch: EngineWatch | None) -> None:
    """Raise RunFailed when one of these folders is gone, its disk is full, or the watched engine does not answer."""
    if reason := shortage(folders) or (engine_watch.failure if engine_watch is not None else None):
        raise RunFailed(reason, rule=HOST)


def shortage(folders: Iterable[Path]) -> str | None:
    """Return which folder is gone, or what its file system is short of and what to do; None if all is well."""
    for folder in folders:
        try:
            found = os.statvfs(folder)
        except FileNotFoundError:
            return f"{folder} is gone: it was removed while the run went on"
        free = found.f_bavail * found.f_frsize
        if free < LEAST_FREE_BYTES:
            return (
                f"{DISK_OF}{folder} is full: {free / 1e6:.1f} MB are free, a run needs "
                f"{LEAST_FREE_BYTES / 1e6:.1f} MB; remove files, or run in a folder on another disk"
            )
        if found.f_files and found.f_favail < LEAST_FREE_FILES:  # some file systems do not count files
            return (
                f"{DISK_OF}{folder} has room for {found.f_favail} more files, a run needs {LEAST_FREE_FILES}; "
                "remove files, or run in a folder on another disk"
            )
    return None


class Watchdog:
    """Asks the `controller` for its status, and raises RunFailed when the run can't continue. A context manager.

    `broken` returns the reason why another part of the run is broken, or None.
    """

    def __init__(
        self,
        experiment: Experiment,
        controller: ControllerProcess,
        directory: Path,
        broken: Callable[[], str | None] = lambda: None,
    ) -> None:
        self.controller = controller
        self._broken = broken
        self._quiet_s = longest_quiet_s(experiment)
        self._engine = EngineWatch()
        self._folders = (directory, Path("/"))
        self._unanswered_since: float | None = None
        self._progressed = time.monotonic()
        self._signs: Mapping[str, Any] = {}

    def __enter__(self) -> Self:
        self._engine.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._engine.__exit__()

    def status(self) -> dict[str, Any] | None:
        """Return the controller's status, or None while it does not answer for less than UNANSWERED_S.

        Raises:
            RunFailed: The run can't continue.
            ControllerFailed: The controller's process has ended.
        """
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
                raise RunFailed(f"the controller gave no status for {silent_s:.0f} s: {error}") from error
            return None
        self._unanswered_since = None
        self._look_for_progress(status)
        return status

    def check_host(self) -> None:
        """Raise RunFailed when a disk is full, the run's directory is gone, or the engine or another part is broken."""
        check_machine(self._folders, self._engine)
        if reason := self._broken():
            raise RunFailed(reason, rule=HOST)

    def _look_for_progress(self, status: Mapping[str, Any]) -> None:
        signs = {name: status[name] for name in SIGNS}
        if signs != self._signs:
            self._signs, self._progressed = signs, time.monotonic()
        elif status["state"] == "running" and time.monotonic() - self._progressed >= self._quiet_s:
            missing = sorted(set(status["joined"]) - set(status["left"]))
            raise RunFailed(
                f"training made no progress for {self._quiet_s:.0f} s after round {status['round'] or 0} of "
                f"{status['rounds']}; not finished: {', '.join(missing)}"
            )
