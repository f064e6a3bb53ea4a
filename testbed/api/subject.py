"""The interface of what an API is over: a network that is up, a run, a recording, or a controller alone."""

from __future__ import annotations

from abc import ABC, abstractmethod
from concurrent.futures import Executor
from typing import Any, Literal

from testbed.api.models import LinkHistory, NetworkStatus
from testbed.api.requests import NOT_HERE, ApiProblem, Request
from testbed.api.stream import State

#: What a state has; each is a mapping from names or numbers to values as JSON has them, of the models that are named
#: like them. `training` holds what a controller says of its run.
Section = Literal["network", "sites", "hosts", "links", "traffic", "events", "training", "plans", "rounds", "decisions"]


class Subject(ABC):
    """What an API is over. Any thread may ask for its state; `do` is called in `executor` alone, one request at a time.

    Attributes:
        executor: Runs the requests, in the thread that the subject's work belongs to.
    """

    executor: Executor

    @abstractmethod
    def state(self) -> State:
        """What it is now, section by section."""

    @abstractmethod
    def status(self) -> NetworkStatus:
        """What runs, its hosts and its links, with how late the replay is, which takes a while to find out."""

    @abstractmethod
    def history(self, since: int | None) -> LinkHistory:
        """The states that links came to have after the first `since`, or each one's last where it is None."""

    def recording(self) -> bytes:
        """All of a run that is over, for the page to play, as JSON: there are megabytes of it."""
        raise ApiProblem(NOT_HERE, "this is no recording: it goes on, and its stream tells how")

    def metrics(self) -> bytes:
        """What Prometheus is told of it, in its text format."""
        raise ApiProblem(NOT_HERE, "this is over: its figures are what `testbed export` writes")

    @abstractmethod
    def do(self, request: Request) -> dict[str, Any]:
        """Carry out a request. Returns what there is to say of it.

        Raises:
            ApiProblem: The request was not carried out.
        """
