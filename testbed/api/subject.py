"""The interface between the API and its subject: a network that is up, a run, a recording, or a controller alone."""

from __future__ import annotations

from abc import ABC, abstractmethod
from concurrent.futures import Executor
from typing import Any, Literal

from testbed.api.models import LinkHistory, NetworkStatus
from testbed.api.requests import NOT_HERE, ApiProblem, Request
from testbed.api.stream import State

#: The sections of a state. Each maps names or numbers to JSON values of the model with the section's name; `training`
#: holds the controller's account of its run, `curves` the figures that a command's programs printed.
Section = Literal[
    "network",
    "sites",
    "hosts",
    "links",
    "traffic",
    "events",
    "training",
    "plans",
    "rounds",
    "decisions",
    "curves",
]


class Subject(ABC):
    """The subject of an API. Any thread may read its state; `do` is called in `executor` alone, a request at a time."""

    #: Runs the requests in the thread that owns the subject.
    executor: Executor

    @abstractmethod
    def state(self) -> State:
        """Return the current state, section by section."""

    @abstractmethod
    def status(self) -> NetworkStatus:
        """Return the status with hosts, links and the lateness of the replay, which takes a while to measure."""

    @abstractmethod
    def history(self, since: int | None) -> LinkHistory:
        """Return the states that links have had after the first `since`, or the last state of each if it is None."""

    def recording(self) -> bytes:
        """Return the whole recording of a run that is over as JSON, several megabytes, for the page to play."""
        raise ApiProblem(NOT_HERE, "only a run that is over has a recording; follow what still runs at /api/v1/stream")

    def metrics(self) -> bytes:
        """Return the metrics in Prometheus' text format."""
        raise ApiProblem(NOT_HERE, "a recording has no live metrics; `testbed export` writes its figures")

    @abstractmethod
    def do(self, request: Request) -> dict[str, Any]:
        """Carry out a request, and return its result. Raises: ApiProblem: the request was not carried out."""
