"""One execution of an experiment: build, measure, train while things happen, take away, judge.

    engine, image -> shaper -> routers and links -> probe -> controller -> containers -> training
                                                                             |  replay clock, sampler, events
    summary, verdict, report  <-  everything taken away, in the reverse order <'

Whatever ends a run (its last round, an error, Ctrl-C), the way back is the same: an ExitStack.
"""

from __future__ import annotations

from contextlib import ExitStack, closing
from pathlib import Path

from rich.markup import escape

from testbed.emulation.containers import Fleet
from testbed.emulation.probe import measure_links
from testbed.emulation.testbed import Testbed
from testbed.run.directory import RunDirectory
from testbed.run.display import Display
from testbed.run.fit import fits_host
from testbed.run.jobs import Jobs
from testbed.run.manifest import Manifest
from testbed.run.story import Story
from testbed.run.training import Outcome, Training
from testbed.run.workers import Workers
from testbed.spec.experiment import Experiment


class Run:
    """An experiment being executed, writing into its directory. Whether it `fits` the host's budget is known once that
    was looked at."""

    def __init__(self, experiment: Experiment, directory: RunDirectory, display: Display) -> None:
        """SpecError when its workers or graphs are not for its scheme."""
        self.experiment = experiment
        self.directory = directory
        self.display = display
        self.fits: bool | None = None
        self._jobs = Jobs(experiment)

    def execute(self, strict: bool = False) -> Outcome:
        """The whole run; everything it made is gone when this returns or raises.

        When the experiment asks for more than the host's measured budget, that is said before anything is built;
        `strict` refuses then, with TooMuch.
        """
        experiment, directory, display, jobs = self.experiment, self.directory, self.display, self._jobs
        story = Story(directory, display)
        testbed = Testbed(
            experiment.topology,
            name=directory.id,
            backend=experiment.spec.backend,
            fit_transport=experiment.spec.transport == "fitted",
            observer=story.put_in_force,
            step=display.step,
        )
        with ExitStack() as stack:
            with display.step("Docker engine and worker image"):
                fleet = self.fleet(testbed.name, testbed.control)
            stack.enter_context(closing(testbed))
            testbed.open()
            network = testbed.network
            self.fits = fits_host(experiment, network.shaper.name, strict, display)
            manifest = Manifest(directory, experiment, network.shaper, fleet.image)
            manifest.add(image_packages=fleet.packages, **jobs.groups)
            testbed.build()
            manifest.add(offload=network.offload, switch=network.switch)
            with display.step("links measured from outside"):
                fidelity = measure_links(network, lambda _: None)
            controller = stack.enter_context(jobs.controller(testbed, directory.path))
            workers = Workers(testbed, fleet, jobs.requests(testbed), experiment.spec.elastic, directory)
            stack.callback(workers.end)
            with display.step(f"{len(experiment.topology.workers)} workers in containers"):
                workers.start()
            manifest.add(transport=network.transport.record())
            for setting, reason in network.transport.refused.items():
                display.say(f"  [yellow]{escape(f'{setting} could not be set: {reason}')}[/]")
            with display.step("workers loaded and joined"):
                workers.wait_until_joined(controller)
            return Training(experiment, testbed, controller, manifest, story, fidelity, workers).go_on()

    def fleet(self, network: str, control: Path) -> Fleet:
        """Where the workers of a network of this name will run, and find the control socket's folder."""
        return Fleet.connected(network, control)
