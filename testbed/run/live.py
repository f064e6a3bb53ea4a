"""A run that trains, as the API's subject: what it is now, and what people ask of it.

What they ask for happens in the thread that looks after the training, between two looks, and as events of the
experiment's file do: it is told, recorded, and said to the controller alike, and marked as done by hand.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from testbed.api.models import LinkHistory, LinkPatch, NetworkStatus
from testbed.api.problem import MISSING, NOT_HERE, WRONG, ApiProblem
from testbed.api.subject import Subject
from testbed.controller.client import AdminClient, AdminError
from testbed.emulation.standing import status
from testbed.emulation.standing.orders import changes_of, check_site, in_words, pairs_of
from testbed.emulation.testbed import Testbed
from testbed.run.changes import Changes
from testbed.run.loop_executor import LoopExecutor
from testbed.run.rounds import RoundRecords
from testbed.run.story import Story
from testbed.spec.experiment import Experiment


class LiveRun(Subject):
    """Over a run's testbed, from the begin of its training to the end; `executor` are the run's own thread's."""

    def __init__(
        self,
        experiment: Experiment,
        testbed: Testbed,
        changes: Changes,
        story: Story,
        executor: LoopExecutor,
        controller: AdminClient | None,
    ) -> None:
        """`controller` is None where members are not ours."""
        self.executor = executor
        self._experiment = experiment
        self._testbed = testbed
        self._changes = changes
        self._story = story
        self._controller = controller
        self._rounds = RoundRecords(story.directory.path, controller)

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

    def change_links(self, patches: Mapping[str, LinkPatch]) -> None:
        """Rates are those in force: the experiment's scale is not for them."""
        with _in_words():
            for change in changes_of(patches, self._testbed.network.links_in_force.asked()):
                self._changes.change(change, "hand")
            for a, b, up in pairs_of(patches):
                self._changes.take(a, b, up, "hand")

    def swap(self, file: Path) -> dict[str, Any]:
        """Rates are the file's by the experiment's scale, as those of its other networks are."""
        with _in_words():
            return self._changes.swap(self._experiment.add_network(file), str(file), "hand")

    def pause(self, paused: bool) -> None:
        with _in_words():
            self._changes.pause(paused, "hand")

    def force(self, policy: str, options: Mapping[str, Any]) -> None:
        self._refuse_without_controller()
        with _in_words():
            self._changes.force(policy, options, "hand")

    def force_plan(self, document: Mapping[str, Any]) -> None:
        self._refuse_without_controller()
        with _in_words():
            self._changes.force_plan(document, "hand")

    def change_graph(self, kind: str) -> None:
        self._refuse_without_controller()
        with _in_words():
            self._changes.change_graph(kind, "hand")

    def kill(self, worker: str) -> None:
        self._check_worker(worker)
        spec = self._experiment.spec
        if spec.elastic is None and not spec.sync.scheme.survives:
            raise ApiProblem(NOT_HERE, f"this run ends without {worker}; write `elastic: {{quorum: 2}}` in its file")
        with _in_words():
            self._changes.kill(worker, "hand")

    def restart(self, worker: str) -> None:
        self._check_worker(worker)
        if self._experiment.spec.elastic is None:
            raise ApiProblem(NOT_HERE, "members of this run don't come back; write `elastic: {quorum: 2}` in its file")
        with _in_words():
            self._changes.restart(worker, "hand")

    def add_worker(self, site: str) -> dict[str, Any]:
        self._refuse_without_controller()
        check_site(self._testbed, site)
        spec = self._experiment.spec
        instead = f"write `workers:` of {site} higher in the topology's file, and run it anew"
        if spec.sync.scheme.exchange == "gossip":
            why = f"members of {spec.sync.strategy} gossip over a graph that was made for them"
            raise ApiProblem(NOT_HERE, f"{why}; {instead}")
        if spec.elastic is None:
            raise ApiProblem(NOT_HERE, "nobody joins this run as it goes on; write `elastic: {quorum: 2}` in its file")
        if spec.hosts is not None:
            raise ApiProblem(NOT_HERE, f"this network is split over several hosts; {instead}")
        with _in_words():
            return self._changes.add_worker(site, "hand")

    def stop(self, reason: str) -> None:
        with _in_words():
            if self._controller is not None:
                self._controller.stop(reason)
            self._story.happened("stop", reason, "hand")
        if self._controller is None:
            os.kill(os.getpid(), signal.SIGTERM)  # as whoever started it would end it

    def _check_worker(self, worker: str) -> None:
        self._refuse_without_controller()
        names = [one.name for one in self._testbed.network.topology.workers]
        if worker not in names:
            raise ApiProblem(MISSING, f"no worker {worker} is there; there are {', '.join(names)}")

    def _refuse_without_controller(self) -> None:
        if self._controller is None:
            raise ApiProblem(NOT_HERE, "a command trains here, by its own plan: its members are not ours")


@contextmanager
def _in_words() -> Iterator[None]:
    """What goes wrong inside, as a ApiProblem."""
    with in_words():
        try:
            yield
        except AdminError as error:
            raise ApiProblem(WRONG, str(error)) from error
