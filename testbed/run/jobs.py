"""The configuration of a run's controller and workers, made from the experiment."""

from __future__ import annotations

import secrets
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from testbed.controller.model.round_log import SIZED
from testbed.controller.model.spec import ControllerSpec, Elasticity, Newcomer, PlanningSpec
from testbed.emulation.containers.fleet import FILES, ContainerRequest, check_readable
from testbed.emulation.network.routing import Routes
from testbed.emulation.testbed import Testbed
from testbed.protocol import Job
from testbed.run import view
from testbed.run.assignments import assignment_of, graph_of, policy_options, site_period
from testbed.run.controller_process import ADDRESS, ControllerProcess
from testbed.schemes import is_file
from testbed.schemes.assignment import GossipAssignment
from testbed.spec.experiment import Experiment
from testbed.spec.topology import Topology, Worker
from testbed.workload import Workload

#: A worker's speed over time: (seconds from the beginning, factor) pairs.
Speeds = tuple[tuple[float, float], ...]

#: The time that workers have to join. Containers import PyTorch side by side: 16 of them took 14 s on two cores.
JOIN_DEADLINE_S = 180.0
#: Workers wait longer for the controller than the run waits for them, so that the run names the missing worker.
PATIENCE_S = 2 * JOIN_DEADLINE_S


class Jobs:
    """The jobs of an experiment's members, and the spec of their controller.

    In containers, a scheme's file has another path than in this process.

    Raises:
        SpecError: The scheme does not take the experiment's workers or graphs, or containers can't read its file.
    """

    def __init__(self, experiment: Experiment, in_containers: bool = True) -> None:
        self._experiment = experiment
        strategy = experiment.spec.sync.strategy
        self._scheme_file = Path(strategy) if in_containers and is_file(strategy) else None
        self._scheme = strategy if self._scheme_file is None else f"{FILES}/{self._scheme_file.name}"
        if self._scheme_file is not None:
            for path in (self._scheme_file.parent, self._scheme_file):
                check_readable(path, "sync.strategy", "a file elsewhere")
        self._assignment = assignment_of(experiment)
        self._secret = secrets.token_hex(32)

    @property
    def groups(self) -> dict[str, Any]:
        """The members' groups, for the manifest; empty under a scheme without groups."""
        assigned = self._assignment
        return {"groups": assigned.groups} if isinstance(assigned, GossipAssignment) and assigned.groups else {}

    def controller(self, testbed: Testbed, out: Path) -> ControllerProcess:
        """Return the controller's process, which is not started yet; it writes its records into `out`."""
        spec = self.controller_spec(testbed.network.routes, time.time())
        return ControllerProcess(spec, testbed.folder, out)

    def requests(self, testbed: Testbed) -> list[ContainerRequest]:
        """Return the container request of each worker."""
        workers = self._experiment.topology.workers
        return [self._request(worker, testbed.network.address(worker)) for worker in workers]

    def _request(self, worker: Worker, address: str) -> ContainerRequest:
        where = ("--control", ADDRESS, "--address", address)
        folder = None if self._scheme_file is None else self._scheme_file.parent
        return ContainerRequest(worker, ("--name", worker.name, *where, "--patience", str(PATIENCE_S)), files=folder)

    def newcomer(self, topology: Topology, worker: Worker, address: str) -> tuple[ContainerRequest, Newcomer]:
        """Return the container request of a worker that is added while the others train, and its controller entry.

        The others keep their shares of the data. The new worker's share is drawn as if there had been one worker more
        from the beginning, so its samples are also in the others' shares. The topology has the new worker already.
        """
        others = [other for other in topology.workers if other is not worker]
        sites = (*(other.site for other in others), worker.site)
        speeds = self._experiment.spec.compute.read_speeds(topology, self._experiment.file)
        job = self._job(worker, len(others), sites, speeds.get(worker.name, ()))
        codecs = self._experiment.link_codecs_among(topology)
        own = {edge: codec for edge, codec in codecs.items() if worker.name in edge.split("->")}
        return self._request(worker, address), Newcomer(name=worker.name, job=job, link_codecs=own)

    def controller_spec(self, routes: Routes, at_s: float) -> ControllerSpec:
        """Return the controller's spec for a network with these routes at a time (Unix seconds)."""
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
            view=replace(known, members=view.slowed(known.members, spec.compute.stragglers)),
            policy=spec.sync.policy,
            options=policy_options(spec),
            codec=spec.sync.codec,
            link_codecs=self._experiment.link_codecs_among(topology),
            period=site_period(spec),
            period_s=spec.controller.period,
            margin=spec.controller.margin,
            dwell_rounds=spec.controller.dwell,
            hold=spec.controller.hold,
            measured_bytes=1 < spec.sync.own.cycle <= SIZED // 2,  # a longer cycle is not seen as one
            covered=spec.sync.own.covered,
            conducted=spec.sync.scheme.conducted,
        )

    def _job(self, worker: Worker, shard: int, sites: tuple[str, ...], speeds: Speeds) -> Job:
        spec = self._experiment.spec
        work = self._workload(worker, shard, sites, speeds)
        return Job(
            rounds=spec.own_train.rounds,
            seed=spec.seed,
            scheme=self._scheme,
            options=asdict(spec.sync.own),
            assignment=self._assignment.of(worker.name),
            workload=work.to_json(),
            samples_per_s=work.samples_per_s,
            round_timeout_s=spec.sync.round_timeout,
            streams=spec.sync.streams,
            congestion=spec.sync.congestion,
        )

    def _workload(self, worker: Worker, shard: int, sites: tuple[str, ...], speeds: Speeds) -> Workload:
        """Return a worker's workload; `sites` has the site of each shard's worker."""
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
