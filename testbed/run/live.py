"""A run that trains, as the API's subject: what it is now, and what people ask of it.

What they ask for happens in the thread that looks after the training, between two looks, and as events of the
experiment's file do: it is told, recorded, and said to the controller alike, and marked as done by hand.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from testbed.api.models import LinkHistory, NetworkStatus
from testbed.api.problem import NOT_HERE, WRONG, ApiProblem
from testbed.api.requests import Request
from testbed.api.subject import Subject
from testbed.controller.client import ControllerClient, ControllerError
from testbed.controller.run_records import RunRecords
from testbed.emulation.daemon import status
from testbed.emulation.daemon.handlers import as_api_problem
from testbed.emulation.testbed import Testbed
from testbed.run.changes import Changes
from testbed.run.loop_executor import LoopExecutor
from testbed.run.story import Story


class LiveRun(Subject):
    """A run, from the begin of its training to the end, as the API's subject.

    Args:
        testbed: The run's network.
        changes: Carries out the requests.
        story: Knows what has happened.
        executor: Runs the requests, in the run's own thread.
        controller: The controller, or None where members are not ours.
    """

    def __init__(
        self,
        testbed: Testbed,
        changes: Changes,
        story: Story,
        executor: LoopExecutor,
        controller: ControllerClient | None,
    ) -> None:
        self.executor = executor
        self._testbed = testbed
        self._changes = changes
        self._story = story
        self._controller = controller
        self._rounds = RunRecords(story.directory.path, controller)

    def state(self) -> dict[str, dict[str, Any]]:
        story = self._story
        told = {name: value for name, value in story.status.items() if name not in ("plan", "swaps", "passages")}
        return {
            **status.sections(self._testbed, "run"),
            "events": {str(number): event for number, event in enumerate(list(story.events), start=1)},
            "training": told | {"workers": self._rounds.spent()},
            "plans": {str(epoch): plan for epoch, plan in sorted(dict(story.plans).items())},
            "rounds": self._rounds.until(story.status.get("round")),
            "decisions": self._rounds.decisions(),
        }

    def status(self) -> NetworkStatus:
        return status.status(self._testbed, "run")

    def metrics(self) -> bytes:
        return status.metrics(self.status(), self._story.status if self._controller else None)

    def history(self, since: int | None) -> LinkHistory:
        raise ApiProblem(NOT_HERE, f"a run keeps its links' states itself: {self._story.directory.path}/links.jsonl")

    def do(self, request: Request) -> dict[str, Any]:
        """Carry out a request. Its rates are those in force; only those of a topology's file are scaled."""
        with _in_words():
            return self._changes.do(request, "hand")


@contextmanager
def _in_words() -> Iterator[None]:
    """Raise what goes wrong inside as an ApiProblem."""
    with as_api_problem():
        try:
            yield
        except ControllerError as error:
            raise ApiProblem(WRONG, str(error)) from error
