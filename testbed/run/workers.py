"""The workers' containers during training: one that dies is restarted or left out, as the experiment declares."""

from __future__ import annotations

import signal
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

from docker.errors import APIError, ImageNotFound, NotFound

from testbed.controller.model.spec import Newcomer
from testbed.emulation.containers.engine import ENGINE_ERRORS, EngineError, explained
from testbed.emulation.containers.fleet import NOTICED_S, ContainerDied, Fleet
from testbed.emulation.network.namespace import held_by
from testbed.emulation.testbed import Testbed
from testbed.run.directory import RunDirectory
from testbed.run.errors import CannotRun, RunFailed
from testbed.run.guards import UndoStack
from testbed.run.jobs import JOIN_DEADLINE_S, Jobs
from testbed.run.watchdog import Watchdog
from testbed.spec.experiment import ElasticSection
from testbed.spec.units import count

#: Seconds between two looks at the containers; the engine lists 16 of them in some 10 ms.
LOOK_S = 1.0

#: The reason of a failed run describes at most this many dead workers; those that waited for them may have ended too.
MOST_DEATHS = 3

#: Seconds between two looks at how many workers have joined.
POLL_S = 0.1


#: The first restart is immediate; the second waits this long, and each further one twice as long …
FIRST_PAUSE_S = 1.0
#: … up to this.
LONGEST_PAUSE_S = 30.0

#: A worker is restarted at most this many times; the last restart is some 90 s after the first death.
MOST_RESTARTS = 8

#: A worker that ran this long did not die at its start: its earlier deaths are not counted.
STEADY_S = 60.0


class RestartBackoff:
    """Decides when one worker is restarted, with exponentially growing pauses. Times are monotonic seconds."""

    def __init__(self) -> None:
        self._count = 0
        self._started: float | None = None
        self._due: float | None = None

    @property
    def over(self) -> bool:
        """True if the worker died more than MOST_RESTARTS times, so that it is not restarted any more."""
        return self._count > MOST_RESTARTS

    def died(self, now: float) -> None:
        """Record that the worker is dead; further calls before its restart change nothing."""
        if self._due is not None:
            return
        if self._started is not None and now - self._started >= STEADY_S:
            self._count = 0
        self._count += 1
        self._due = now + (min(FIRST_PAUSE_S * 2 ** (self._count - 2), LONGEST_PAUSE_S) if self._count > 1 else 0.0)

    def due(self, now: float) -> bool:
        """Return whether the pause after the worker's death is over, so that the worker is to be restarted."""
        return self._due is not None and not self.over and now >= self._due

    def started(self, now: float) -> None:
        """Record that the worker was restarted."""
        self._started, self._due = now, None


class Workers:
    """Starts, watches and removes the workers' containers, and keeps their logs in the run's directory.

    A run that is not elastic restarts no worker: its controller ends the run.
    """

    def __init__(
        self,
        testbed: Testbed,
        fleet: Fleet,
        jobs: Jobs,
        elastic: ElasticSection | None,
        directory: RunDirectory,
    ) -> None:
        self._testbed = testbed
        self._fleet = fleet
        self._jobs = jobs
        self._requests = {request.worker.name: request for request in jobs.requests(testbed)}
        self._elastic = elastic
        self._logs = directory.path / "logs"
        self._left_out: set[str] = set()
        self._half_replaced: set[str] = set()
        self._backoffs: defaultdict[str, RestartBackoff] = defaultdict(RestartBackoff)
        self._looked = time.monotonic()

    def start(self) -> None:
        """Start all containers on the testbed's network.

        Raises:
            RunFailed: A container ended at once.
            CannotRun: The engine can't give a container the limits that its site declares.
            ImageNotFound: The worker image was removed since it was looked up.
        """
        try:
            self._testbed.start(self._fleet, self._requests.values())
        except ContainerDied as error:
            raise RunFailed(str(error)) from error
        except ImageNotFound:
            raise
        except APIError as error:
            raise CannotRun(f"{explained(error)}. Check the limits (cpus, memory, gpus) of the sites") from error
        except (ProcessLookupError, FileNotFoundError) as error:  # a worker's namespace has gone with the worker
            self._check_alive(error, NOTICED_S)
            raise

    def _check_alive(self, error: Exception | None = None, seconds: float = 0.0) -> None:
        """Raise RunFailed if a worker has ended, from the error that its end caused. The engine may notice it late."""
        until_s = time.monotonic() + seconds
        while True:
            with suppress(*ENGINE_ERRORS):
                if gone := [name for name, runs in self._fleet.running().items() if not runs]:
                    text = f"{gone[0]} ended before it joined, {self._fleet.death(gone[0])}"
                    raise RunFailed(text, rule="ended", member=gone[0]) from error
            if time.monotonic() >= until_s:
                return
            time.sleep(LOOK_S)

    def limits(self) -> dict[str, Any]:
        """Return each worker's limits, for the manifest; empty before a container was started."""
        limits = self._fleet.limits
        return limits.record([request.worker for request in self._requests.values()]) if limits else {}

    def unlimited(self) -> dict[str, str]:
        """Return the limits that this host can't enforce, each with the reason."""
        missing = self._fleet.limits.missing if self._fleet.limits else {}
        return {f"the workers' limit on {limit}": why for limit, why in missing.items()}

    def wait_until_joined(self, watchdog: Watchdog) -> None:
        """Wait until all workers have joined the controller.

        Raises:
            RunFailed: A worker ended, or did not join within JOIN_DEADLINE_S.
        """
        deadline = time.monotonic() + JOIN_DEADLINE_S
        while (status := watchdog.status()) is None or status["state"] == "waiting":
            self._check_alive()  # the watchdog decides how long the engine may be silent
            if status is not None and time.monotonic() > deadline:
                missing = sorted(set(status["members"]) - set(status["joined"]))
                for name in missing:
                    with suppress(*ENGINE_ERRORS):  # a worker that has ended is named all the same
                        self._fleet.kill(name, signal.SIGUSR1)  # makes it print its stacks
                time.sleep(POLL_S)  # until the stacks are in its log
                raise RunFailed(
                    f"{', '.join(missing)} did not join within {JOIN_DEADLINE_S:g} s; the end of "
                    f"{self._logs / missing[0]}.log shows where it hangs",
                    rule="timeout",
                    member=missing[0],
                )
            time.sleep(POLL_S)
        if status["state"] == "failed":
            watchdog.check_host()  # a broken host may be why training failed
            raise RunFailed(status["failure"])

    def end(self) -> None:
        """Save the containers' logs and remove them, while the controller still runs.

        Raises:
            RunFailed: The engine did not remove the containers.
        """
        with UndoStack() as stack:
            stack.callback(self._remove)
            for worker in self._fleet.running():
                stack.callback(self._save_log, worker)

    def kill(self, worker: str) -> None:
        """Kill a container, as a crash would. A container that has ended or is gone is left alone."""
        try:
            self._fleet.kill(worker)
        except APIError as error:
            if error.status_code not in (404, 409):
                raise

    def restart(self, worker: str) -> None:
        """Restart a container in an elastic run; one that still runs is killed first."""
        self._left_out.discard(worker)
        self._replace(worker)

    @contextmanager
    def one_more(self, site: str) -> Iterator[Newcomer]:
        """Start one more worker at a site, and yield its entry for the controller.

        Leaving the context by an exception removes the worker from the network again.

        Raises:
            KeyError: The topology has no such site.
            ValueError: The site has no address left for a worker.
            EmulationError: The container does not start.
        """
        network = self._testbed.network
        before, topology = network.topology, network.topology.with_worker(site)
        worker = topology.last_worker(site)
        request, newcomer = self._jobs.newcomer(topology, worker, network.address(worker))
        with self._fleet.replacing(()), ExitStack() as undo:
            try:
                fresh = self._fleet.start([request])
            except ContainerDied as error:
                raise EngineError(f"{worker.name} does not start: {error}") from error
            except ENGINE_ERRORS as error:
                raise EngineError(f"{worker.name} does not start: {explained(error)}") from error
            network.swap(topology, holders=fresh)
            undo.callback(network.swap, before, holders={})
            yield newcomer
            undo.pop_all()
        self._requests[worker.name] = request

    def look(self) -> list[str]:
        """Restart the workers that died, if the experiment says so, and return the names of those restarted now.

        Raises:
            RunFailed: A worker died more than MOST_RESTARTS times.
        """
        if self._elastic is None or time.monotonic() - self._looked < LOOK_S:
            return []
        self._looked = time.monotonic()
        try:
            ended = {name for name, runs in self._fleet.running().items() if not runs}
            dead = sorted((ended | self._half_replaced) - self._left_out)
            crashed = [name for name in dead if name in self._half_replaced or self._fleet.exit_code(name) != 0]
        except ENGINE_ERRORS:
            return []  # the watchdog decides how long the engine may be silent
        self._left_out |= set(dead) - set(crashed)  # these exited with 0: they have finished
        if self._elastic.lost == "leave":
            self._left_out |= set(crashed)
            return []
        restarted = []
        for name in crashed:
            with suppress(*ENGINE_ERRORS):  # the next look tries again
                if self._restart_if_due(name):
                    restarted.append(name)
        return restarted

    def deaths(self) -> str:
        """Return the workers that ended with an error and how, one a line, with a line break before each.

        Empty if no worker did, or if the engine does not answer.
        """
        try:
            deaths = [f"\n{name} ended {how}" for name, how in sorted(self._fleet.deaths().items())]
        except ENGINE_ERRORS:
            return ""
        more = (
            f"\n{count(len(deaths) - MOST_DEATHS, 'more worker')} ended with an error" if deaths[MOST_DEATHS:] else ""
        )
        return "".join(deaths[:MOST_DEATHS]) + more

    def _restart_if_due(self, worker: str) -> bool:
        """Restart a worker whose pause is over; return True if its container lived until it was on the network."""
        restarts = self._backoffs[worker]
        restarts.died(time.monotonic())
        if restarts.over:
            raise RunFailed(
                f"{worker} was restarted {count(MOST_RESTARTS, 'time')} and died again, {self._fleet.death(worker)}",
                rule="restarts",
                member=worker,
            )
        if not restarts.due(time.monotonic()):
            return False
        return self._replace(worker)

    def _replace(self, worker: str) -> bool:
        """Replace a worker's container; return True if the new one lived until it was on the network."""
        self._backoffs[worker].started(time.monotonic())
        self._half_replaced.discard(worker)
        try:
            self._save_log(worker)
            first = self._fleet.restart(self._requests[worker])
        except ContainerDied:
            return False  # the next look finds it dead
        except ENGINE_ERRORS:
            self._half_replaced.add(worker)  # its container may run, but is not on the network
            raise
        try:
            self._testbed.network.leave([worker])
            self._testbed.network.join({worker: first})
        except (OSError, RuntimeError):
            if held_by(first.pid):
                raise
            return False  # the container died with its namespace; the engine may not know yet
        return True

    def _remove(self) -> None:
        try:
            self._fleet.remove()
        except EngineError as error:
            raise RunFailed(str(error)) from error

    def _save_log(self, worker: str) -> None:
        """Append a container's log to its worker's file, after the logs of the containers before it."""
        with (self._logs / f"{worker}.log").open("ab") as file, suppress(NotFound):
            file.write(self._fleet.logs(worker))
