"""Members in containers on an emulated network that reduce without a pause while plans and rates change.

The containers start once for all measurements, as in a run: the worker's program, the controller and its swaps, the
shaped links. Between two measurements the network (in place) and the policy in force change.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.support.netstorm import PARAMETERS
from testbed.api.requests import ForcePolicy
from testbed.controller.model.spec import ControllerSpec, PlanningSpec
from testbed.emulation.containers.fleet import ContainerRequest, Fleet
from testbed.emulation.interrupt import interruptible
from testbed.emulation.network.network import Network
from testbed.emulation.testbed import Testbed
from testbed.plan import Plan
from testbed.planning import View
from testbed.protocol import Job
from testbed.run.controller_process import ADDRESS, ControllerProcess
from testbed.run.view import view_of
from testbed.spec.topology import Topology
from testbed.telemetry.store import read_records
from testbed.workload import Workload

#: Asking the controller costs it some 10 ms, on the processors that the members share.
POLL_S = 0.5

#: Nine containers import PyTorch side by side; a swap waits for the end of a round, which a star makes long.
DEADLINE_S = 180.0

#: Longer than any measurement, so that the controller evaluates its policy only when it is asked to.
NEVER_S = 1e6
ENDLESS = 2**31 - 1

#: BBR keeps twice the product of rate and least round trip in flight. Here that is almost nothing, and links stay idle
#: while acknowledgements queue: a round of packing took 1.29 times the bound under BBR and 1.26 under reno.
CONGESTION = "reno"


@dataclass(frozen=True, slots=True)
class Rounds:
    """Rounds measured under one plan."""

    plan: Plan
    #: The time of each round, from the end of the round before to its own end.
    seconds: tuple[float, ...]
    #: The part of the acknowledged bytes that took auxiliary routes.
    auxiliary_part: float


class Live:
    """A network that is up, with members that reduce on it; made by `members_on`."""

    def __init__(self, network: Network, controller: ControllerProcess, out: Path) -> None:
        self.network = network
        self._controller = controller
        self._out = out

    def view(self) -> View:
        """Return the present network, down to the physical links."""
        return _view(self.network)

    def become(self, topology: Topology, tell: bool = True) -> None:
        """Turn the network into another one, in place; routes follow. With `tell`, the controller is told."""
        self.network.swap(topology)
        if tell:
            seen = self.view()
            self._controller.client.change_network(seen.links, seen.routes)

    @property
    def plan(self) -> Plan:
        """The plan in force."""
        return self._controller.client.plan()

    def force(self, policy: str, options: Mapping[str, Any]) -> None:
        """Put a policy's plan in force, and wait until members use it."""
        before = len(self._forced())
        self._controller.client.do(ForcePolicy(policy=policy, options=dict(options)))
        self.wait(lambda _: len(self._forced()) > before)
        decision = self._forced()[-1]
        if decision["adopted"]:
            self.wait(lambda status: status["epoch"] >= decision["epoch"])

    def _forced(self) -> list[dict[str, Any]]:
        """Return the controller's decisions on forced plans. A plan that is in force already is not adopted."""
        return [one for one in read_records(self._out / "decisions.jsonl") if one["reason"] == "forced"]

    def measure(self, count: int) -> Rounds:
        """Return the next `count` rounds under the plan in force.

        No round is left out: a plan's first round is over when the controller's status shows the plan in force.
        """
        client = self._controller.client
        plan = self.plan
        first = (client.status()["round"] or 0) + 1  # the round that is on has begun already
        self.wait(lambda status: (status["round"] or 0) >= first + count)
        rounds = client.rounds(first)[: count + 1]
        if any(done["epoch"] != plan.epoch for done in rounds):
            raise RuntimeError(f"the plan of epoch {plan.epoch} was swapped while it was measured")
        ends = [done["finished_s"] for done in rounds]
        seconds = tuple(after - before for before, after in pairwise(ends))
        return Rounds(plan, seconds, self._auxiliary_part({done["round"] for done in rounds[1:]}))

    def _auxiliary_part(self, rounds: set[int]) -> float:
        reports = [report for report in read_records(self._out / "rounds.jsonl") if report["round"] in rounds]
        samples = [sample for report in reports for sample in report["peers"]]
        sent = sum(int(sample["bytes"]) for sample in samples)
        return sum(int(sample["auxiliary_bytes"]) for sample in samples) / max(1, sent)

    def wait(self, condition: Callable[[Mapping[str, Any]], bool]) -> None:
        """Wait until a condition on the controller's status holds.

        Raises:
            RuntimeError: The condition did not hold within DEADLINE_S, or members failed.
        """
        deadline = time.monotonic() + DEADLINE_S
        while not condition(status := self._controller.client.status()):
            self._controller.check()
            if status["failure"]:
                raise RuntimeError(status["failure"])
            if time.monotonic() > deadline:
                raise RuntimeError(f"the members did not reach the awaited state within {DEADLINE_S:g} s")
            time.sleep(POLL_S)


@contextmanager
def members_on(name: str, topology: Topology) -> Iterator[Live]:
    """Run the topology's workers, which reduce gradients of PARAMETERS values, until the context is left."""
    with interruptible(), ExitStack() as stack:
        out = Path(stack.enter_context(TemporaryDirectory(prefix=f"{name}-")))
        (out / "logs").mkdir()
        testbed = stack.enter_context(closing(Testbed(topology, name=name)))
        fleet = Fleet.connected(name, testbed.control)
        testbed.open()
        testbed.build()
        network = testbed.network
        controller = stack.enter_context(ControllerProcess(_spec(network), testbed.folder, out))
        stack.callback(fleet.remove)
        testbed.start(fleet, _requests(network))
        live = Live(network, controller, out)
        live.wait(lambda status: status["round"] is not None)
        yield live


def _workload(shard: int, shards: int) -> dict[str, Any]:
    work = Workload("synthetic", 1, "sgd", 0.1, 0, shard, shards, parameters=PARAMETERS, evaluate_every=ENDLESS)
    return work.to_json()


def _spec(network: Network) -> ControllerSpec:
    workers = network.topology.workers
    jobs = {
        worker.name: Job(ENDLESS, workload=_workload(shard, len(workers)), congestion=CONGESTION)
        for shard, worker in enumerate(workers)
    }
    return ControllerSpec(
        members=tuple(jobs),
        secret=secrets.token_hex(32),
        jobs=jobs,
        planning=PlanningSpec(view=_view(network), policy="netstorm", period_s=NEVER_S),
    )


def _view(network: Network) -> View:
    states = network.links_in_force.states()
    return view_of(network.topology, network.routes, states, 4 * PARAMETERS, time.time(), "oracle")


def _requests(network: Network) -> Iterator[ContainerRequest]:
    for worker in network.topology.workers:
        where = ("--control", ADDRESS, "--address", network.address(worker))
        command = ("--name", worker.name, *where, "--patience", str(2 * DEADLINE_S))
        yield ContainerRequest(worker, command)
