"""A training run as the API's subject: its state, and the requests that people send.

Requests are carried out in the thread that watches the training, between two checks, and recorded like the events of
the experiment's file, but marked as done by hand.
"""

from __future__ import annotations

import os
import queue
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import Executor, Future
from contextlib import suppress
from dataclasses import replace
from typing import Any, ParamSpec, Self, TypeVar

from testbed.api.entry import ApiPort, show_in_browser, write_entry
from testbed.api.models import LinkHistory, NetworkStatus
from testbed.api.requests import FAILED, NOT_HERE, WRONG, ApiProblem, Request
from testbed.api.server import ApiServer, PortTaken, port_socket
from testbed.api.subject import Subject
from testbed.controller.client import ControllerClient, ControllerError, ControllerFailedError
from testbed.controller.run_records import RunRecords
from testbed.emulation.daemon import RUN_SOCKET, status
from testbed.emulation.daemon.handlers import as_api_problem
from testbed.emulation.testbed import Testbed
from testbed.run.changes import Changes, EventPlayer
from testbed.run.errors import CannotRun, RunFailed
from testbed.run.run_log import RunLog
from testbed.run.terminal.display import Display
from testbed.spec.experiment import Experiment

P = ParamSpec("P")
R = TypeVar("R")

#: The most rounds, decisions and events in the state, of each kind: a run may make a million rounds.
NEWEST_SHOWN = 5_000


class LoopExecutor(Executor):
    """Runs submitted calls in the thread that calls `wait`, one after the other. A shutdown cancels the rest."""

    def __init__(self) -> None:
        self._asked: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]]] = queue.SimpleQueue()
        self._over = False
        self._guard = threading.Lock()

    def submit(self, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Future[R]:
        """Queue a call, from any thread. Raises RuntimeError after the shutdown."""
        future: Future[R] = Future()
        with self._guard:  # the shutdown cancels all calls queued before it
            if self._over:
                raise RuntimeError("the run has ended and takes no more requests")
            self._asked.put((future, lambda: fn(*args, **kwargs)))
        return future

    def wait(self, seconds: float) -> None:
        """Run the calls that are queued by now, and those that arrive within `seconds`.

        Raises:
            RunFailed: A call raised it.
        """
        until = time.monotonic() + seconds
        with suppress(queue.Empty):
            for _ in range(self._asked.qsize()):
                _do(*self._asked.get_nowait())
            while (left := until - time.monotonic()) > 0:
                _do(*self._asked.get(timeout=left))

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Reject further calls, and cancel the queued ones."""
        with self._guard:
            self._over = True
        while not self._asked.empty():
            self._asked.get()[0].cancel()


def _do(future: Future[Any], work: Callable[[], Any]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        future.set_result(work())
    except RunFailed as error:
        future.set_exception(ApiProblem(FAILED, f"the run ends: {error}"))
        raise
    except Exception as error:
        future.set_exception(error)
    except BaseException as error:  # an interrupt of this thread also ends the call
        future.set_exception(RuntimeError(f"interrupted: {error}"))
        raise


class LiveRun(Subject):
    """A run as the API's subject, from the beginning of its training to the end.

    `executor` runs requests in the run's own thread. The controller knows the rounds and plans; it is None if a command
    trains without one.
    """

    def __init__(
        self,
        testbed: Testbed,
        changes: Changes,
        run_log: RunLog,
        executor: LoopExecutor,
        controller: ControllerClient | None,
    ) -> None:
        self.executor = executor
        self._testbed = testbed
        self._changes = changes
        self._run_log = run_log
        self._controller = controller
        self._rounds = RunRecords(run_log.directory.path, controller, newest=NEWEST_SHOWN)

    def state(self) -> dict[str, dict[str, Any]]:
        """Return the network and the training, section by section, as `api.subject.Section` names them."""
        run_log = self._run_log
        events = list(run_log.events)
        apart = ("plan", "swaps", "membership_events")
        shown = {name: value for name, value in run_log.status.items() if name not in apart}
        return {
            **status.sections(self._testbed, "run"),
            "events": {
                str(number): event
                for number, event in enumerate(events, start=1)
                if number > len(events) - NEWEST_SHOWN or event.get("by") == "hand"  # the page counts these
            },
            "training": shown | {"workers": self._rounds.spent()},
            "plans": {str(epoch): plan for epoch, plan in sorted(dict(run_log.plans).items())},
            "rounds": self._rounds.until(run_log.status.get("round")),
            "decisions": self._rounds.decisions(),
            "curves": dict(run_log.curves),
        }

    def status(self) -> NetworkStatus:
        """Return the network's status with hosts and links."""
        return status.status(self._testbed, "run")

    def metrics(self) -> bytes:
        """Return the network's metrics, and those of the training where a controller runs, in Prometheus' format."""
        return status.metrics(self.status(), self._run_log.status if self._controller else None)

    def history(self, since: int | None) -> LinkHistory:
        """Refuse: the run's directory has the history of links."""
        raise ApiProblem(NOT_HERE, f"the history of a run's links is in {self._run_log.directory.path}/links.jsonl")

    def do(self, request: Request) -> dict[str, Any]:
        """Carry out a request. Its rates are not scaled: `scale` applies to the rates in files.

        Raises:
            ApiProblem: The request was not carried out.
            RunFailed: The time limit of the run's check was exceeded meanwhile, which ends the run.
        """
        with as_api_problem(RunFailed):
            try:
                return self._changes.do(request, "hand")
            except ControllerFailedError as error:
                raise ApiProblem(FAILED, str(error)) from error
            except ControllerError as error:
                raise ApiProblem(WRONG, str(error)) from error


def listen_for_page(display: Display) -> None:
    """Listen at the port of `--open` from now on, if a page is asked for, until the display's command ends.

    Raises:
        CannotRun: The port is taken.
    """
    asked = display.api_port
    if asked is None or asked.listening is not None:
        return
    try:
        display.api_port = replace(asked, listening=port_socket(asked.port))
    except PortTaken as error:
        raise CannotRun(str(error)) from error


class RunControl:
    """Serves the run's API, and carries its requests out in the thread that calls `wait`. A context manager.

    Attributes:
        changes: Carries out requests and events.
        events: Plays the file's events.

    The API shows the rounds and plans of `controller`, if there is one.
    """

    def __init__(
        self,
        experiment: Experiment,
        testbed: Testbed,
        run_log: RunLog,
        changes: Changes,
        controller: ControllerClient | None,
    ) -> None:
        self.changes = changes
        self.events = EventPlayer(experiment, changes)
        self._executor = LoopExecutor()
        self._run = LiveRun(testbed, changes, run_log, self._executor, controller)
        self._run_log = run_log
        self._folder = testbed.folder

    def __enter__(self) -> Self:
        """Serve the API, on the run's socket and on the port of `--open`.

        The next run of the command gets the same port and token, so that an open page shows that run next. The port's
        socket, that of `listen_for_page`, listens from the first run to the last: between two runs, no other program
        can take the port.
        """
        display = self._run_log.display
        asked = display.api_port
        port, token = (None, None) if asked is None else (asked.listening, asked.token)
        self._server = ApiServer(self._run, self._folder / RUN_SOCKET, port, token)
        kept = self._server.listening()
        self._server.__enter__()
        try:
            self._run_log.announce = self._server.announce
            if asked is not None and self._server.port is not None:
                display.api_port = ApiPort(self._server.port, token=self._server.token, listening=kept)
                page = write_entry(self._folder, self._server.port, self._server.token)
                display.say(show_in_browser(page, asked))
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._executor.shutdown()
        self._server.__exit__()

    def wait(self, seconds: float) -> None:
        """Carry out requests for `seconds`. After one to stop a run that has no controller, end the run as `kill` does.

        The request has its answer by then: the signal interrupts what this thread does.
        """
        self._executor.wait(seconds)
        if self.changes.stopped:
            os.kill(os.getpid(), signal.SIGTERM)
