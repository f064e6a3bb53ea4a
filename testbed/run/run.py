"""One execution of an experiment: build, measure, train while things happen, take away, judge.

    engine, image -> shaper -> routers and links -> probe -> controller -> containers -> training
                                                                             |  replay clock, sampler, events
    summary, verdict, report  <-  everything taken away, in the reverse order <'

Whatever ends a run (its last round, an error, Ctrl-C), the way back is the same: an ExitStack.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import asdict
from functools import partial
from pathlib import Path

import docker
from rich.markup import escape

from testbed.controller.spec import ControllerSpec, Elasticity, PlanningSpec
from testbed.emulation import budget, engine
from testbed.emulation.containers import ContainerDied, ContainerRequest, Fleet
from testbed.emulation.image import ensure_worker_image
from testbed.emulation.label import labelled
from testbed.emulation.network import Network
from testbed.emulation.probe import measure_links
from testbed.emulation.shaping import open_shaper
from testbed.link import LinkState
from testbed.planning import PolicyError, make_policy
from testbed.protocol import Job
from testbed.run import view
from testbed.run.assignments import assignment_of, graph_of, policy_options, site_period
from testbed.run.directory import RunDirectory
from testbed.run.display import Display
from testbed.run.errors import RunFailed, TooMuch
from testbed.run.manifest import Manifest
from testbed.run.service import ControllerProcess
from testbed.run.training import Outcome, Training
from testbed.run.workers import Workers
from testbed.schemes.assignment import GossipAssignment
from testbed.spec.errors import Fault, SpecError
from testbed.spec.experiment import Experiment
from testbed.spec.topology import Worker
from testbed.workload import Workload

#: How often it looks whether all have joined.
POLL_S = 0.1

#: Containers import PyTorch side by side on few cores: 16 of them took 14 s on two.
JOIN_DEADLINE_S = 180.0
#: The first containers wait for the last one's start as well; the run is to say who is missing, not they.
PATIENCE_S = 2 * JOIN_DEADLINE_S


def check_policy(experiment: Experiment) -> None:
    """Raise SpecError when the experiment's policy does not exist, refuses its options, or has no plan for the
    network as the files declare it: found out by planning, before anything is built."""
    sync = experiment.spec.sync
    known = view.declared_view(experiment.topology, experiment.spec.round_bytes)
    try:
        make_policy(sync.policy, policy_options(experiment.spec)).plan(known)
    except (PolicyError, TypeError, ValueError) as error:
        fault = Fault("sync.policy", str(error), "a policy and options as docs/experiment.md lists them")
        raise SpecError(experiment.file, [fault]) from None
    assignment_of(experiment)


class Run:
    """An experiment being executed, writing into its directory. Whether it `fits` the host's budget is known once that
    was looked at."""

    def __init__(self, experiment: Experiment, directory: RunDirectory, display: Display) -> None:
        self.experiment = experiment
        self.directory = directory
        self.display = display
        self.fits: bool | None = None
        self._token = secrets.token_hex(16)
        self._assignment = assignment_of(experiment)

    def execute(self, strict: bool = False) -> Outcome:
        """The whole run; everything it made is gone when this returns or raises.

        When the experiment asks for more than the host's measured budget, that is said before anything is built;
        `strict` refuses then, with TooMuch.
        """
        experiment, display = self.experiment, self.display
        with ExitStack() as stack:
            with display.step("Docker engine and worker image"):
                client = engine.connect()
                image = ensure_worker_image(client, lambda _: None)
            folder = stack.enter_context(labelled(self.directory.id))
            with display.step("shaping backend, probed"):
                shaper = stack.enter_context(open_shaper(experiment.spec.backend))
            self._compare_with_budget(shaper.name, strict)
            manifest = Manifest(self.directory, experiment, shaper, image)
            if isinstance(self._assignment, GossipAssignment) and self._assignment.groups:
                manifest.add(groups=self._assignment.groups)
            topology = experiment.topology
            with display.step(
                f"{len(topology.sites)} sites, {len(topology.links)} directed links, {shaper.name} shaping"
            ):
                fit_transport = experiment.spec.transport == "fitted"
                network = Network(self.directory.id, topology, shaper, self._record_state, fit_transport)
                stack.callback(network.stop)
                network.build()
            manifest.add(offload=network.offload, switch=network.switch)
            with display.step("links measured from outside"):
                fidelity = measure_links(network, lambda _: None)
            controller = stack.enter_context(
                ControllerProcess(self._controller_spec(network), folder, self.directory.path)
            )
            with display.step(f"{len(topology.workers)} workers in containers"):
                fleet = stack.enter_context(self.fleet(client, image, controller.control))
                stack.callback(self._save_logs, fleet)
                try:
                    network.join(fleet.start(self._requests(network)))
                except ContainerDied as error:
                    raise RunFailed(str(error)) from error
            manifest.add(transport=network.transport.record())
            for setting, reason in network.transport.refused.items():
                display.say(f"  [yellow]{escape(f'{setting} could not be set: {reason}')}[/]")
            with display.step("workers loaded and joined"):
                self._wait_for_members(controller, fleet)
            requests = self._requests(network)
            workers = Workers(fleet, network, requests, experiment.spec.elastic, partial(self._save_log, fleet))
            training = Training(experiment, network, controller, self.directory, manifest, display, fidelity, workers)
            return training.go_on()

    def fleet(self, client: docker.DockerClient, image: str, control: Path) -> Fleet:
        """Where the workers will run."""
        return Fleet(client, self.directory.id, image, control)

    def _compare_with_budget(self, backend: str, strict: bool) -> None:
        kept = budget.host_budget(backend)
        if kept is None:
            with self.display.step("what this host carries"):
                kept = budget.measure_budget(backend)
        excess = budget.need(self.experiment, kept).excess(kept, self.experiment.spec.scale)
        self.fits = excess is None
        if excess is None:
            return
        text = f"{self.experiment.file} asks for more than this host carries: {excess} ({kept})"
        if strict:
            raise TooMuch(text)
        self.display.say(f"  [yellow]{escape(text)}[/]")

    def _record_state(self, at_s: float, link: str, state: LinkState) -> None:
        # States come with the monotonic clock's time, which files from several processes do not share.
        record = {
            "at_s": at_s - time.monotonic() + time.time(),
            "link": link,
            "rate_bps": state.rate_bps,
            "delay_s": state.delay_s,
            "jitter_s": state.jitter_s,
            "loss": state.loss,
            "up": state.up,
        }
        self.directory.append("links.jsonl", record)

    def _controller_spec(self, network: Network) -> ControllerSpec:
        spec, workers, assigned = self.experiment.spec, self.experiment.topology.workers, self._assignment
        graph = graph_of(self.experiment, assigned) if isinstance(assigned, GossipAssignment) else None
        return ControllerSpec(
            members=tuple(worker.name for worker in workers),
            token=self._token,
            jobs={worker.name: self._job(worker, index) for index, worker in enumerate(workers)},
            planning=self._planning_spec(network) if graph is None else None,
            graph=graph,
            elastic=None
            if spec.elastic is None
            else Elasticity(quorum=spec.elastic.quorum, lease_s=spec.elastic.lease),
        )

    def _planning_spec(self, network: Network) -> PlanningSpec:
        spec, topology = self.experiment.spec, self.experiment.topology
        states = view.declared_states(topology)
        known = view.view_of(topology, network.routes, states, spec.round_bytes, time.time(), spec.controller.knowledge)
        return PlanningSpec(
            view=known,
            policy=spec.sync.policy,
            options=policy_options(spec),
            codec=spec.sync.codec,
            link_codecs=self.experiment.link_codecs,
            period=site_period(spec),
            period_s=spec.controller.period,
            margin=spec.controller.margin,
            dwell_rounds=spec.controller.dwell,
            hold=spec.controller.hold,
        )

    def _job(self, worker: Worker, index: int) -> Job:
        spec = self.experiment.spec
        work = self._workload(worker, index)
        return Job(
            rounds=spec.train.rounds,
            seed=spec.seed,
            scheme=spec.sync.strategy,
            options=asdict(spec.sync.own),
            assignment=self._assignment.of(worker.name),
            workload=work.to_json(),
            samples_per_s=work.samples_per_s,
            round_timeout_s=spec.sync.round_timeout,
            streams=spec.sync.streams,
            congestion=spec.sync.congestion,
        )

    def _workload(self, worker: Worker, index: int) -> Workload:
        spec, workers = self.experiment.spec, self.experiment.topology.workers
        slowdown = spec.compute.slowdown
        return Workload(
            model=spec.train.model,
            batch=spec.train.batch,
            optimizer=spec.train.optimizer.name,
            learning_rate=spec.train.optimizer.learning_rate,
            seed=spec.seed,
            shard=index,
            shards=len(workers),
            partition=spec.train.partition.kind,
            alpha=spec.train.partition.alpha,
            sites=tuple(other.site for other in workers),
            parameters=spec.train.parameters or 0,
            tensors=spec.sync.own.parts,
            step_seconds=spec.compute.step_seconds(worker),
            device=spec.train.device,
            evaluate_every=spec.train.evaluate_every,
            slow_factor=slowdown.factor if slowdown else 1.0,
            slow_probability=slowdown.probability if slowdown else 0.0,
            speeds=self.experiment.speeds.get(worker.name, ()),
        )

    def _requests(self, network: Network) -> Iterable[ContainerRequest]:
        for worker in self.experiment.topology.workers:
            control = "unix:/run/testbed/control.sock"
            where = ("--control", control, "--address", network.address(worker))
            command = ("--name", worker.name, *where, "--patience", str(PATIENCE_S))
            yield ContainerRequest(worker, command, {"TESTBED_TOKEN": self._token})

    def _wait_for_members(self, controller: ControllerProcess, fleet: Fleet) -> None:
        deadline = time.monotonic() + JOIN_DEADLINE_S
        while (status := controller.admin.status())["state"] == "waiting":
            controller.check()
            gone = [name for name, runs in fleet.running().items() if not runs]
            if gone:
                raise RunFailed(f"{gone[0]} ended before it joined; {self._log_tail(fleet, gone[0])}")
            if time.monotonic() > deadline:
                missing = sorted(set(status["members"]) - set(status["joined"]))
                raise RunFailed(f"{', '.join(missing)} did not join within {JOIN_DEADLINE_S:g} s")
            time.sleep(POLL_S)
        if status["state"] == "failed":
            raise RunFailed(status["failure"])

    def _log_tail(self, fleet: Fleet, worker: str) -> str:
        tail = "\n".join(fleet.logs(worker).decode(errors="replace").splitlines()[-10:])
        return f"its log ends with:\n{tail}"

    def _save_logs(self, fleet: Fleet) -> None:
        for worker in fleet.running():
            self._save_log(fleet, worker)

    def _save_log(self, fleet: Fleet, worker: str) -> None:
        """Those of a worker's earlier containers stand before it."""
        with (self.directory.path / "logs" / f"{worker}.log").open("ab") as file:
            file.write(fleet.logs(worker))
