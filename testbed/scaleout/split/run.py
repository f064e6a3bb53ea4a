"""A run whose network is split over several hosts: a Run, on hosts that are started first and asked what they are.

    hosts file -> a process on each host -> ways between them -> placing -> a Run on their parts

It is called on one of the hosts: the controller is there, and the run's directory.
"""

from __future__ import annotations

import secrets
from pathlib import Path

from rich.markup import escape

from testbed.emulation.containers.fleet import Fleet
from testbed.emulation.testbed import Testbed
from testbed.run.directory import RunDirectory
from testbed.run.errors import TooMuch
from testbed.run.guards.guard import Guard
from testbed.run.run import IMAGE_S, Run
from testbed.run.story import Story
from testbed.run.terminal.display import Display
from testbed.scaleout.split.fleet import SplitFleet
from testbed.scaleout.split.start import Machines, fitting_plan, own_address, settings_of, start_hosts, way_in
from testbed.scaleout.split.whole import SplitTestbed
from testbed.spec.experiment import Experiment
from testbed.spec.units import count


class SplitRun(Run):
    """An experiment being executed on several hosts."""

    def __init__(
        self, experiment: Experiment, directory: RunDirectory, display: Display, machines: Machines, strict: bool
    ) -> None:
        """SpecError when its workers or graphs are not for its scheme."""
        super().__init__(experiment, directory, display)
        self._machines = machines
        self._strict = strict

    def testbed(self, story: Story, guard: Guard) -> Testbed:
        """On the hosts of the file. SpecError where a link is too short for them, HostLost for one that is gone."""
        experiment, display = self.experiment, self.display
        guard.allow(IMAGE_S, "starting the hosts")
        token = secrets.token_bytes(16)
        with display.step(f"{count(len(self._machines), 'host')}, and the ways between them"):
            self._hosts = guard.enter_context(start_hosts(self._machines, token))
            plan, excess = fitting_plan(experiment, self._hosts, self._machines)
        if excess is not None:
            if self._strict:
                raise TooMuch(excess)
            display.say(f"  [yellow]{escape(excess)}[/]")
        for host in plan.hosts:
            display.say(f"  {host}: {', '.join(plan.placing.sites_on(host))}")
        self._host_of = {worker.name: plan.placing.host_of[worker.site] for worker in experiment.topology.workers}
        return SplitTestbed(
            self.directory.id, plan, self._hosts, settings_of(experiment), story.put_in_force, display.step
        )

    def fleet(self, network: str, control: Path) -> Fleet:
        return SplitFleet(self._hosts, self._host_of)

    def connect(self, testbed: Testbed, guard: Guard) -> None:
        """Open the gateway at this host's address, and the proxies on all."""
        guard.enter_context(way_in(testbed, self._hosts, self._host_of, own_address(self._machines)))
