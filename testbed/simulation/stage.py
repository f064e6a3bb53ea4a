"""What an experiment is simulated on: the network, the queue of what is to happen, the controller."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from testbed.emulation.network.routing import Routes
from testbed.run.jobs import Jobs
from testbed.run.measured import CONGESTION_CONTROL
from testbed.simulation.controller import SimulatedController
from testbed.simulation.event_queue import EventQueue, SimulatedClocks
from testbed.simulation.network import SimulatedNetwork
from testbed.spec.experiment import Experiment


@dataclass(frozen=True, slots=True)
class Stage:
    """Events change the network when the queue comes to them, and the controller hears of it."""

    network: SimulatedNetwork
    queue: EventQueue
    controller: SimulatedController

    @classmethod
    def of(cls, experiment: Experiment, out: Path, routes: Routes) -> Stage:
        """An experiment's, which begins with these routes, and with the second that it is now; the controller's records
        come into `out`."""
        queue = EventQueue(SimulatedClocks(time.time()))
        spec = Jobs(experiment).controller_spec(routes, queue.clocks.unix())
        return cls(SimulatedNetwork(experiment, routes), queue, SimulatedController(spec, out, queue))


def congestion_control(experiment: Experiment) -> str:
    """Return the congestion control that members would have on this machine."""
    return experiment.spec.sync.congestion or CONGESTION_CONTROL.read_text().strip()
