"""What the controller and the workers of a run are told, made of the experiment."""

from __future__ import annotations

import secrets
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from testbed.controller.model.spec import ControllerSpec, Elasticity, Newcomer, PlanningSpec
from testbed.emulation.containers.fleet import ContainerRequest
from testbed.emulation.network.routing import Routes
from testbed.emulation.testbed import Testbed
from testbed.protocol import Job
from testbed.run import view
from testbed.run.assignments import assignment_of, graph_of, policy_options, site_period
from testbed.run.controller_process import ADDRESS, ControllerProcess
from testbed.schemes.assignment import GossipAssignment
from testbed.spec.experiment import Experiment
from testbed.spec.topology import Topology, Worker
from testbed.workload import Workload

#: A worker's speeds from moments on, as a trace has them.
Speeds = tuple[tuple[float, float], ...]

#: Containers import PyTorch side by side on few cores: 16 of them took 14 s on two.
JOIN_DEADLINE_S = 180.0
#: The first containers wait for the last one's start as well; the run is to say who is missing, not they.
PATIENCE_S = 2 * JOIN_DEADLINE_S


class Jobs:
    """The jobs of an experiment's members, and a secret of their controller's.

    SpecError when its workers or graphs are not for its scheme.
    """

    def __init__(self, experiment: Experiment) -> None:
        self._experiment = experiment
        self._assignment = assignment_of(experiment)
        self._secret = secrets.token_hex(32)

    @property
    def groups(self) -> dict[str, Any]:
        """For the manifest: the groups that members were put in, by a scheme that has some."""
        assigned = self._assignment
        return {"groups": assigned.groups} if isinstance(assigned, GossipAssignment) and assigned.groups else {}

    def controller(self, testbed: Testbed, out: Path) -> ControllerProcess:
        """The controller of these members on a network that is built, with its records in `out`. Yet to be entered."""
        spec = self.controller_spec(testbed.network.routes, time.time())
        return ControllerProcess(spec, testbed.folder, out)

    def requests(self, testbed: Testbed) -> list[ContainerRequest]:
        """What each worker's container is to run."""
        workers = self._experiment.topology.workers
        return [self._request(worker, testbed.network.address(worker)) for worker in workers]

    def _request(self, worker: Worker, address: str) -> ContainerRequest:
        where = ("--control", ADDRESS, "--address", address)
        return ContainerRequest(worker, ("--name", worker.name, *where, "--patience", str(PATIENCE_S)))

    def newcomer(self, topology: Topology, worker: Worker, address: str) -> tuple[ContainerRequest, Newcomer]:
        """What the container of a worker is to run that comes while the others train, and what the controller is told
        of it. `topology` has it.

        The others keep their shares of the data. It learns from one that is drawn as for one worker more than there
        were, so what is in that is in another's share too.
        """
        others = [other for other in topology.workers if other is not worker]
        sites = (*(other.site for other in others), worker.site)
        speeds = self._experiment.spec.compute.read_speeds(topology, self._experiment.file)
        job = self._job(worker, len(others), sites, speeds.get(worker.name, ()))
        codecs = self._experiment.link_codecs_among(topology)
        own = {edge: codec for edge, codec in codecs.items() if worker.name in edge.split("->")}
        return self._request(worker, address), Newcomer(name=worker.name, job=job, link_codecs=own)

    def controller_spec(self, routes: Routes, at_s: float) -> ControllerSpec:
        """What the controller is told, of a network with these routes at a time (Unix seconds)."""
        spec, workers, assigned = self._experiment.spec, self._experiment.topology.workers, self._assignment
        graph = graph_of(self._experiment, assigned) if isinstance(assigned, GossipAssignment) else None
        sites, speeds = tuple(worker.site for worker in workers), self._experiment.speeds
        return ControllerSpec(
            members=tuple(worker.name for worker in workers),
            secret=self._secret,
            jobs={
                worker.name: self._job(worker, index, sites, speeds.get(worker.name, ()))
                for index, worker in enumerate(workers)
            },
            planning=self._planning_spec(routes, at_s) if graph is None else None,
            graph=graph,
            elastic=None
            if spec.elastic is None
            else Elasticity(quorum=spec.elastic.quorum, lease_s=spec.elastic.lease),
        )

    def _planning_spec(self, routes: Routes, at_s: float) -> PlanningSpec:
        spec, topology = self._experiment.spec, self._experiment.topology
        states = view.declared_states(topology)
        known = view.view_of(topology, routes, states, spec.round_bytes, at_s, spec.controller.knowledge)
        return PlanningSpec(
            view=known,
            policy=spec.sync.policy,
            options=policy_options(spec),
            codec=spec.sync.codec,
            link_codecs=self._experiment.link_codecs_among(topology),
            period=site_period(spec),
            period_s=spec.controller.period,
            margin=spec.controller.margin,
            dwell_rounds=spec.controller.dwell,
            hold=spec.controller.hold,
            conducted=spec.sync.scheme.conducted,
        )

    def _job(self, worker: Worker, shard: int, sites: tuple[str, ...], speeds: Speeds) -> Job:
        spec = self._experiment.spec
        work = self._workload(worker, shard, sites, speeds)
        return Job(
            rounds=spec.own_train.rounds,
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

    def _workload(self, worker: Worker, shard: int, sites: tuple[str, ...], speeds: Speeds) -> Workload:
        """`sites` has that of each shard's worker."""
        spec = self._experiment.spec
        slowdown = spec.compute.slowdown
        return Workload(
            model=spec.own_train.model,
            batch=spec.own_train.batch,
            optimizer=spec.own_train.optimizer.name,
            learning_rate=spec.own_train.optimizer.learning_rate,
            seed=spec.seed,
            shard=shard,
            shards=len(sites),
            partition=spec.own_train.partition.kind,
            alpha=spec.own_train.partition.alpha,
            sites=sites,
            dataset=spec.own_train.data,
            rank=spec.own_train.rank or 0,
            parameters=spec.own_train.parameters or 0,
            tensors=spec.sync.own.parts,
            step_seconds=spec.compute.step_seconds(worker),
            device=spec.own_train.device,
            evaluate_every=spec.own_train.evaluate_every,
            slow_factor=slowdown.factor if slowdown else 1.0,
            slow_probability=slowdown.probability if slowdown else 0.0,
            speeds=speeds,
        )
