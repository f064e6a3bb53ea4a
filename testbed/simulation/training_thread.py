"""A member's training while rounds are simulated: a worker's own loop, on a thread that waits where it asks for one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from threading import Thread
from typing import cast

from testbed import sync
from testbed.plan import Plan
from testbed.protocol import Job
from testbed.simulation.means import Given
from testbed.simulation.members import Activity, CompletedRound
from testbed.simulation.session import Left, SimulatedSession
from testbed.worker.learner import Learner
from testbed.worker.loop import train
from testbed.workload import Workload


class TrainingThread:
    """Trains a model as the member `name`; `plan` says what the next round goes by. At its end `digest` is there."""

    def __init__(self, name: str, job: Job, plan: Callable[[], Plan], model: Learner) -> None:
        self.digest = ""
        self._session = SimulatedSession(name, job, plan)
        # What steps take is the simulation's matter.
        self._work = replace(Workload.from_json(job.workload), step_seconds=0.0)
        self._model = model
        self._thread = Thread(target=self._train, name=f"{name} learns", daemon=True)
        self._thread.start()

    def _train(self) -> None:
        try:
            train(cast(sync.Session, self._session), self._work, self._model)
            self.digest = self._model.digest()
        except Left:
            return
        except BaseException as error:
            self._session.activities.put(error)
            return
        self._session.end()

    def activity(self) -> Activity:
        """What it does up to the next round that it asks for; what it failed with is raised."""
        activity = self._session.activities.get()
        if isinstance(activity, BaseException):
            raise activity
        return activity

    @property
    def given(self) -> Given:
        """To the round that it has asked for."""
        assert self._session.given is not None
        return self._session.given

    def resume(self, mean: CompletedRound) -> None:
        """It holds the mean of that round."""
        self._session.resume(mean)

    def close(self) -> None:
        """End it."""
        self._session.leave()
        self._thread.join()
