"""The workers' containers while training goes on: one that dies is started anew, or left out, as was declared."""

from __future__ import annotations

import signal
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

from docker.errors import APIError, NotFound

from testbed.controller.model.spec import Newcomer
from testbed.emulation.containers.engine import ENGINE_ERRORS, EngineError, explained
from testbed.emulation.containers.fleet import ContainerDied, Fleet
from testbed.emulation.network.namespace import held_by
from testbed.emulation.testbed import Testbed
from testbed.emulation.undo import UndoStack
from testbed.run.directory import RunDirectory
from testbed.run.errors import CannotRun, RunFailed
from testbed.run.guards.watchdog import Watchdog
from testbed.run.jobs import JOIN_DEADLINE_S, Jobs
from testbed.spec.experiment import ElasticSection

#: How often the engine is asked; it lists 16 containers in some 10 ms.
LOOK_S = 1.0

#: So many dead workers are described where a run ends; those that waited for them may have ended as well.
MOST_DEATHS = 3

#: How often it is looked whether all have joined.
POLL_S = 0.1


class Workers:
    """Looks after the containers of the workers that have `jobs`, and keeps their logs in the run's directory.

    Where the run is not elastic there is nothing to be done for one that dies: the controller ends the run then.
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
        """Start all of them on the testbed's network. RunFailed when one ends at once, CannotRun when the engine can't
        give one what its site declares."""
        try:
            self._testbed.start(self._fleet, self._requests.values())
        except ContainerDied as error:
            raise RunFailed(str(error)) from error
        except APIError as error:
            raise CannotRun(f"{explained(error)}. See limits (cpus, memory, gpus) of the sites") from error

    def limits(self) -> dict[str, Any]:
        """For the manifest: what each may take of the host; nothing where no container was started."""
        limits = self._fleet.limits
        return limits.record([request.worker for request in self._requests.values()]) if limits else {}

    def unlimited(self) -> dict[str, str]:
        """The limits that this host can't keep, and why."""
        missing = self._fleet.limits.missing if self._fleet.limits else {}
        return {f"the workers' limit on {limit}": why for limit, why in missing.items()}

    def wait_until_joined(self, watchdog: Watchdog) -> None:
        """Until the controller says that training goes on. RunFailed when a worker ends, or does not join in time."""
        deadline = time.monotonic() + JOIN_DEADLINE_S
        while (status := watchdog.status()) is None or status["state"] == "waiting":
            with suppress(*ENGINE_ERRORS):  # how long the engine may be silent is for the watchdog to say
                gone = [name for name, runs in self._fleet.running().items() if not runs]
                if gone:
                    raise RunFailed(
                        f"{gone[0]} ended before it joined, {self._fleet.death(gone[0])}", rule="ended", member=gone[0]
                    )
            if status is not None and time.monotonic() > deadline:
                missing = sorted(set(status["members"]) - set(status["joined"]))
                for name in missing:
                    with suppress(*ENGINE_ERRORS):  # one that ended since is named all the same
                        self._fleet.kill(name, signal.SIGUSR1)
                time.sleep(POLL_S)  # for it to be written
                raise RunFailed(
                    f"{', '.join(missing)} did not join within {JOIN_DEADLINE_S:g} s; where it stood is at the end of "
                    f"{self._logs / missing[0]}.log",
                    rule="timeout",
                    member=missing[0],
                )
            time.sleep(POLL_S)
        if status["state"] == "failed":
            raise RunFailed(status["failure"])

    def end(self) -> None:
        """Save their logs and remove them, as long as the controller is there. RunFailed when no engine does that."""
        with UndoStack() as stack:
            stack.callback(self._remove)
            for worker in self._fleet.running():
                stack.callback(self._save_log, worker)

    def kill(self, worker: str) -> None:
        """End a container at once, as a crash would; nothing to do for one that has ended, or is gone."""
        try:
            self._fleet.kill(worker)
        except APIError as error:
            if error.status_code not in (404, 409):
                raise

    def restart(self, worker: str) -> None:
        """Start a container anew, in an elastic run; one that still runs is ended first."""
        self._left_out.discard(worker)
        self._replace(worker)

    @contextmanager
    def one_more(self, site: str) -> Iterator[Newcomer]:
        """Start a worker more at a site, on the testbed's network; what the controller is to be told of it. Left by an
        error, all is as it was.

        KeyError or ValueError where the site has no room for one, EmulationError when it does not start.
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
        """Whose container was started anew now, since it had died. RunFailed when one has died too often."""
        if self._elastic is None or time.monotonic() - self._looked < LOOK_S:
            return []
        self._looked = time.monotonic()
        try:
            ended = {name for name, runs in self._fleet.running().items() if not runs}
            dead = sorted((ended | self._half_replaced) - self._left_out)
            crashed = [name for name in dead if name in self._half_replaced or self._fleet.exit_code(name) != 0]
        except ENGINE_ERRORS:
            return []  # how long the engine may be silent is for the watchdog to say
        self._left_out |= set(dead) - set(crashed)  # done
        if self._elastic.lost == "leave":
            self._left_out |= set(crashed)
            return []
        anew = []
        for name in crashed:
            with suppress(*ENGINE_ERRORS):  # that was an attempt: another one follows
                if self._start_anew(name):
                    anew.append(name)
        return anew

    def deaths(self) -> str:
        """Which workers ended with an error, and how: what follows a run's reason to end. Empty where none did, or the
        engine can't say."""
        try:
            deaths = [f"\n{name} ended {how}" for name, how in sorted(self._fleet.deaths().items())]
        except ENGINE_ERRORS:
            return ""
        more = f"\n{len(deaths) - MOST_DEATHS} more ended with an error" if len(deaths) > MOST_DEATHS else ""
        return "".join(deaths[:MOST_DEATHS]) + more

    def _start_anew(self, worker: str) -> bool:
        """Whether the time had come for it, and it was there for long enough to be put on the network."""
        restarts = self._backoffs[worker]
        restarts.died(time.monotonic())
        if restarts.over:
            raise RunFailed(
                f"{worker} was started anew {MOST_RESTARTS} times, and died again, {self._fleet.death(worker)}",
                rule="restarts",
                member=worker,
            )
        if not restarts.due(time.monotonic()):
            return False
        return self._replace(worker)

    def _replace(self, worker: str) -> bool:
        """Whether its new container was there for long enough to be put on the network."""
        self._backoffs[worker].started(time.monotonic())
        self._half_replaced.discard(worker)
        try:
            self._save_log(worker)
            first = self._fleet.restart(self._requests[worker])
        except ContainerDied:
            return False  # the next look finds it dead
        except ENGINE_ERRORS:
            self._half_replaced.add(worker)  # it may run, and is not on the network
            raise
        try:
            self._testbed.network.leave([worker])
            self._testbed.network.join({worker: first})
        except (OSError, RuntimeError):
            if held_by(first.pid):
                raise
            return False  # its namespace ended with it; the engine may not know yet
        return True

    def _remove(self) -> None:
        try:
            self._fleet.remove()
        except EngineError as error:
            raise RunFailed(str(error)) from error

    def _save_log(self, worker: str) -> None:
        """Those of a worker's earlier containers stand before it; that of one that is gone went with it."""
        with (self._logs / f"{worker}.log").open("ab") as file, suppress(NotFound):
            file.write(self._fleet.logs(worker))


#: The first time a worker is started anew at once; the second time after so long, then after twice that, …
FIRST_PAUSE_S = 1.0
#: … and never after more than this.
LONGEST_PAUSE_S = 30.0

#: A worker that dies once more than this is not started again: what ends it will do so again. The last pause is
#: over some 90 s after the first death.
MOST_RESTARTS = 8

#: One that has run for so long did not die of its start: its earlier deaths are forgotten.
STEADY_S = 60.0


class RestartBackoff:
    """One worker's."""

    def __init__(self) -> None:
        self._count = 0
        self._started: float | None = None
        self._due: float | None = None

    @property
    def over(self) -> bool:
        """Whether it has died too often."""
        return self._count > MOST_RESTARTS

    def died(self, now: float) -> None:
        """It is dead; said once or more often."""
        if self._due is not None:
            return
        if self._started is not None and now - self._started >= STEADY_S:
            self._count = 0
        self._count += 1
        self._due = now + (min(FIRST_PAUSE_S * 2 ** (self._count - 2), LONGEST_PAUSE_S) if self._count > 1 else 0.0)

    def due(self, now: float) -> bool:
        """Whether it is to be started now."""
        return self._due is not None and not self.over and now >= self._due

    def started(self, now: float) -> None:
        """It was."""
        self._started, self._due = now, None
