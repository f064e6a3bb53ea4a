"""Where an experiment runs: on this machine, or over the hosts that its file names."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from testbed.run.directory import RunDirectory
from testbed.run.programs.run import AnyRun, run_of
from testbed.run.terminal.display import Display
from testbed.scaleout.split.run import SplitRun
from testbed.scaleout.split.start import machines_of
from testbed.spec.errors import Fault, SpecError
from testbed.spec.experiment import Experiment
from testbed.spec.hosts import Hosts


def run_on(hosts_file: Path, strict: bool) -> Callable[[Experiment, RunDirectory, Display], AnyRun]:
    """Makes what executes an experiment. The hosts file is read where the experiment asks for hosts."""

    def make(experiment: Experiment, directory: RunDirectory, display: Display) -> AnyRun:
        if experiment.spec.hosts is None:
            return run_of(experiment, directory, display)
        if experiment.spec.program is not None:
            rule = "a network where a command trains is not split over hosts"
            raise SpecError(experiment.file, [Fault("hosts", rule, "leave it out")])
        return SplitRun(experiment, directory, display, machines_of(experiment, Hosts.load(hosts_file)), strict)

    return make
