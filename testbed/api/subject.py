"""What an API is over: a network that is up, or a run."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from concurrent.futures import Executor
from pathlib import Path
from typing import Any, Literal

from testbed.api.models import LinkHistory, LinkPatch, NetworkStatus
from testbed.api.problem import NOT_HERE, ApiProblem
from testbed.api.stream import State

#: What a state has; each is a mapping from names or numbers to values as JSON has them, of the models that are named
#: like them. `training` holds what a controller says of its run.
Section = Literal["network", "sites", "hosts", "links", "traffic", "events", "training", "plans", "rounds", "decisions"]


class Subject(ABC):
    """Asked from any thread for what it is; verbs are called in `executor` alone, one after the other.

    A verb raises ApiProblem where it does nothing. One that a subject lacks is answered with NOT_HERE.
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
    def change_links(self, patches: Mapping[str, LinkPatch]) -> None:
        """Other values for links, by name: for all of them or, when something is wrong, for none."""

    @abstractmethod
    def swap(self, file: Path) -> dict[str, Any]:
        """Another network, by difference; what the swap did."""

    @abstractmethod
    def pause(self, paused: bool) -> None:
        """Hold the replay of traces, or let it go on."""

    @abstractmethod
    def stop(self, reason: str) -> None:
        """End, in a moment: this returns before."""

    @abstractmethod
    def add_worker(self, site: str) -> dict[str, Any]:
        """One more worker at a site: its name, `worker`, and its `address`."""

    def force(self, policy: str, options: Mapping[str, Any]) -> None:
        """Go by a policy from now on, and put its plan in force."""
        raise ApiProblem(NOT_HERE, "nothing trains here: a policy plans for the members of an experiment")

    def force_plan(self, document: Mapping[str, Any]) -> None:
        """Put one plan in force, whatever it saves."""
        raise ApiProblem(NOT_HERE, "nothing trains here: a plan is for the members of an experiment")

    def change_graph(self, kind: str) -> None:
        """Have members that gossip go over to another graph."""
        raise ApiProblem(NOT_HERE, "nothing trains here: a graph is what members of an experiment gossip over")

    def kill(self, worker: str) -> None:
        """End a worker's program at once, as a crash would."""
        raise ApiProblem(
            NOT_HERE, "nothing of ours runs in these workers; what was started in one is its starter's to end"
        )

    def restart(self, worker: str) -> None:
        """Start a worker's program anew."""
        raise ApiProblem(
            NOT_HERE, "nothing of ours runs in these workers; what was started in one is its starter's to end"
        )
