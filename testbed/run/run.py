"""One execution of an experiment: build, measure, train while things happen, take away, judge.

    engine, image -> shaper -> routers and links -> probe -> controller -> containers -> training
                                                                             |  replay clock, sampler, events
    summary, verdict, report  <-  everything taken away, in the reverse order <'

Whatever ends a run (its last round, an error, Ctrl-C), the way back is the same: an ExitStack.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from testbed.controller.client import AdminError
from testbed.controller.spec import ControllerSpec
from testbed.emulation import budget, engine
from testbed.emulation.containers import ContainerRequest, Fleet
from testbed.emulation.image import ensure_worker_image
from testbed.emulation.label import labelled
from testbed.emulation.network import Network
from testbed.emulation.probe import LinkFidelity, measure_links
from testbed.emulation.replay import ReplayClock
from testbed.emulation.shaping import open_shaper
from testbed.link import LinkState
from testbed.plan import Plan
from testbed.planning import PolicyError, make_policy
from testbed.protocol import Job
from testbed.run import view
from testbed.run.directory import RunDirectory
from testbed.run.display import Display, Snapshot
from testbed.run.manifest import make_manifest
from testbed.run.sampler import Sampler
from testbed.run.script import Script
from testbed.run.service import ControllerProcess
from testbed.spec.errors import Fault, SpecError
from testbed.spec.experiment import Experiment
from testbed.spec.topology import Worker

#: How often the run looks at its parts while training goes on; events are on time to within it.
POLL_S = 0.1
#: How often it asks the controller; a round takes longer.
STATUS_S = 0.3

#: Containers import PyTorch side by side on few cores: 16 of them took 14 s on two.
JOIN_DEADLINE_S = 180.0


class RunFailed(RuntimeError):
    """Training did not come to its end; the text says why, and where more is."""


class TooMuch(RuntimeError):
    """The experiment does not fit this host; the text says what would."""


@dataclass
class Outcome:
    """What a run leaves for its summary."""

    fidelity: dict[str, LinkFidelity]
    backend: str
    training_started_s: float
    training_ended_s: float
    lateness: dict[str, list[float]]
    rate_errors: dict[str, float]
    status: dict[str, Any]
    network_swaps: list[dict[str, Any]]


def check_policy(experiment: Experiment) -> None:
    """Raise SpecError when the experiment's policy does not exist or does not take its options."""
    sync = experiment.spec.sync
    try:
        make_policy(sync.policy, sync.options)
    except PolicyError as error:
        raise SpecError(
            experiment.file, [Fault("sync.policy", str(error), "a policy and options named there")]
        ) from None


class Run:
    """An experiment being executed, writing into its directory."""

    def __init__(self, experiment: Experiment, directory: RunDirectory, display: Display) -> None:
        self.experiment = experiment
        self.directory = directory
        self.display = display

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
            self.manifest = make_manifest(self.directory.id, experiment, shaper, image)
            self._write_manifest(started_s=time.time())
            topology = experiment.topology
            with display.step(
                f"{len(topology.sites)} sites, {len(topology.links)} directed links, {shaper.name} shaping"
            ):
                network = Network(self.directory.id, topology, shaper, self._record_state)
                stack.callback(network.stop)
                network.build()
            with display.step("links measured from outside"):
                fidelity = measure_links(network, lambda _: None)
            controller = stack.enter_context(
                ControllerProcess(self._controller_spec(network), folder, self.directory.path)
            )
            with display.step(f"{len(topology.workers)} workers in containers"):
                fleet = stack.enter_context(Fleet(client, self.directory.id, image, controller.control))
                stack.callback(self._save_logs, fleet)
                network.join(fleet.start(self._requests(network)))
            with display.step("workers loaded and joined"):
                self._wait_for_members(controller, fleet)
            training = _Training(self, network, controller, fleet)
            training.go_on()
            return training.outcome(fidelity)

    def _compare_with_budget(self, backend: str, strict: bool) -> None:
        kept = budget.host_budget(backend)
        if kept is None:
            with self.display.step("what this host carries, measured once"):
                kept = budget.measure_budget(backend)
        excess = budget.need(self.experiment, kept).excess(kept, self.experiment.spec.scale)
        if excess is None:
            return
        text = f"{self.experiment.file} asks for more than this host carries: {excess}"
        if strict:
            raise TooMuch(text)
        self.display.say(f"  [yellow]{text}[/]")

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

    def _write_manifest(self, **more: Any) -> None:
        self.manifest |= more
        self.directory.write("manifest.json", self.manifest)

    def _controller_spec(self, network: Network) -> ControllerSpec:
        spec, topology = self.experiment.spec, self.experiment.topology
        states = view.declared_states(topology)
        known = view.view_of(topology, network.routes, states, spec.train.model_bytes, time.time(), "measured")
        workers = topology.workers
        return ControllerSpec(
            members=tuple(worker.name for worker in workers),
            token="",
            jobs={worker.name: self._job(worker, index, len(workers)) for index, worker in enumerate(workers)},
            view=known,
            policy=spec.sync.policy,
            options=spec.sync.options,
            period_s=spec.controller.period,
            margin=spec.controller.margin,
            dwell_rounds=spec.controller.dwell,
            join_timeout_s=JOIN_DEADLINE_S,
        )

    def _job(self, worker: Worker, index: int, count: int) -> Job:
        spec = self.experiment.spec
        return Job(
            model=spec.train.model,
            rounds=spec.train.rounds,
            batch=spec.train.batch,
            optimizer=spec.train.optimizer.name,
            learning_rate=spec.train.optimizer.learning_rate,
            seed=spec.seed,
            shard=index,
            shards=count,
            partition=spec.train.partition.kind,
            alpha=spec.train.partition.alpha,
            parameters=spec.train.parameters or 0,
            step_seconds=spec.compute.step_time / worker.speed,
            device=spec.train.device,
            evaluate_every=spec.train.evaluate_every,
            strategy=spec.sync.strategy,
            round_timeout_s=spec.sync.round_timeout,
        )

    def _requests(self, network: Network) -> Iterable[ContainerRequest]:
        for worker in self.experiment.topology.workers:
            control = "unix:/run/testbed/control.sock"
            command = ("--name", worker.name, "--control", control, "--address", network.address(worker))
            yield ContainerRequest(worker, command)

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
            (self.directory.path / "logs" / f"{worker}.log").write_bytes(fleet.logs(worker))


class _Training:
    """The time from the first round to the last: replay, samples, events, and what a person sees of them."""

    def __init__(self, run: Run, network: Network, controller: ControllerProcess, fleet: Fleet) -> None:
        self._run = run
        self._network = network
        self._controller = controller
        self._fleet = fleet
        self._clock = ReplayClock(network.links_in_force.replay)
        self._sampler = Sampler(network, self._sampled)
        self._script = Script(run.experiment, self._clock.follow, network, controller.admin, self._happened)
        self._samples: list[dict[str, Any]] = []
        self._told: list[str] = []
        self._status: dict[str, Any] = {}
        self._swaps_told = 0

    def go_on(self) -> None:
        """Until the controller says it is over. RunFailed when that is not the end it should have."""
        rounds = self._run.experiment.spec.train.rounds
        self.started_s = time.time()
        self._run._write_manifest(training_started_s=self.started_s)
        with ExitStack() as stack, self._run.display.live(rounds):
            stack.callback(self._clock.stop)
            stack.callback(self._sampler.stop)
            self._clock.start(self._network.topology.links.values())
            self._sampler.start()
            asked = 0.0
            while self._status.get("state", "running") == "running":
                time.sleep(POLL_S)
                self._script.play(self._clock.elapsed_s, self._status.get("round") or 0)
                if time.monotonic() - asked >= STATUS_S:
                    asked = time.monotonic()
                    self._look()
        self.ended_s = time.time()
        self._run._write_manifest(ended_s=self.ended_s)
        if self._status["state"] == "failed":
            raise RunFailed(f"training stopped: {self._status['failure']}")

    def _look(self) -> None:
        self._controller.check()
        try:
            self._status = self._controller.admin.status()
        except AdminError:
            self._controller.check()
            return  # busy for a moment; asked again soon
        broken = self._network.shaper.failure() or self._clock.failure
        if broken:
            raise RunFailed(f"the emulation broke: {broken}")
        for swap in self._status["swaps"][self._swaps_told :]:
            if swap["active_s"] is None:
                break
            self._swaps_told += 1
            self._told.append(f"plan {swap['epoch']} in force from round {swap['active_round']}: {swap['reason']}")
        self._run.display.show(self._snapshot())

    def _snapshot(self) -> Snapshot:
        metrics = self._status["metrics"]
        return Snapshot(
            round=self._status["round"] or 0,
            rounds=self._status["rounds"],
            loss=metrics.get("loss"),
            accuracy=metrics.get("accuracy"),
            seconds_per_round=self._status["round_seconds"],
            plan=Plan.from_json(self._status["plan"]),
            states=self._network.links_in_force.states(),
            throughput=self._throughput(),
            events=tuple(self._told),
        )

    def _throughput(self) -> dict[str, float]:
        if len(self._samples) < 2:
            return {}
        before, after = self._samples[-2:]
        seconds = after["at_s"] - before["at_s"]
        return {
            link: (count - before["bytes"].get(link, count)) * 8 / seconds for link, count in after["bytes"].items()
        }

    def _sampled(self, sample: Any) -> None:
        self._samples.append(sample)
        self._run.directory.append("traffic.jsonl", sample)

    def _happened(self, kind: str, target: str) -> None:
        self._told.append(f"{kind} {target}")
        self._run.directory.append("events.jsonl", {"at_s": time.time(), "kind": kind, "target": target})

    def outcome(self, fidelity: dict[str, LinkFidelity]) -> Outcome:
        """What there is to know at the end, read before the network goes."""
        counters = self._network.shaper.counters()
        return Outcome(
            fidelity=fidelity,
            backend=self._network.shaper.name,
            training_started_s=self.started_s,
            training_ended_s=self.ended_s,
            lateness=self._clock.lateness(),
            rate_errors={name: error for name, c in counters.items() if (error := c.rate_error) is not None},
            status=self._status,
            network_swaps=self._script.swaps,
        )
