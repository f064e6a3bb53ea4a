"""A run whose network is split over several hosts.

    hosts file -> a process on each host -> paths between them -> plan -> a Run on their parts

The run is started on one of the hosts: the controller and the run's directory are there.
"""

from __future__ import annotations

import secrets
import signal
import socket
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any, NamedTuple

from rich.markup import escape

from testbed.controller.server.member_server import SOCKET
from testbed.emulation.containers.fleet import ContainerRequest, Fleet
from testbed.emulation.errors import EmulationError
from testbed.emulation.host.budget import USABLE, Budget, need
from testbed.emulation.process import ProcessIdentity
from testbed.emulation.testbed import Testbed
from testbed.run.directory import RunDirectory
from testbed.run.errors import TooMuch
from testbed.run.guards import Guard
from testbed.run.programs.run import run_of
from testbed.run.run import IMAGE_S, Execution, Run
from testbed.run.run_log import RunLog
from testbed.run.terminal.display import Display
from testbed.scaleout.split.host import PartSettings
from testbed.scaleout.split.hosts import HostLost, HostProcess, SplitHosts
from testbed.scaleout.split.plan import Capacity, SplitPlan, plan_split
from testbed.scaleout.split.probes import TOKEN_BYTES
from testbed.scaleout.split.testbed import SplitTestbed
from testbed.scaleout.ssh import Forwarding, Ssh
from testbed.spec.errors import Fault, SpecError
from testbed.spec.experiment import Experiment
from testbed.spec.hosts import Hosts
from testbed.spec.units import count

MODULE = "testbed.scaleout.split.host"


class Machine(NamedTuple):
    """A machine that is one of a run's hosts: its address, and how SSH reaches it."""

    #: The machine's address on the hosts' network.
    address: IPv4Address
    #: The SSH access to the machine; None for this machine.
    ssh: Ssh | None

    @property
    def command(self) -> list[str]:
        """The command that starts the process for the host's part."""
        if self.ssh is None:
            return [sys.executable, "-P", "-m", MODULE]
        folder = self.ssh.host.folder
        script = f"cd {folder} && exec {folder}/.venv/bin/python -P -m {MODULE}"
        return self.ssh.command(script, alive_s=5, alive_count=3)


def run_on(hosts_file: Path | None, strict: bool) -> Callable[[Experiment, RunDirectory, Display], Execution]:
    """Return a function that makes the run of an experiment: here, or over the hosts that the experiment asks for.

    The hosts file, by default hosts.yaml, is read only where the experiment asks for hosts.
    """

    def make(experiment: Experiment, directory: RunDirectory, display: Display) -> Execution:
        if experiment.spec.hosts is None:
            if hosts_file is not None:
                rule = f"--hosts-file names {hosts_file}, but the experiment asks for no hosts"
                raise SpecError(
                    experiment.file, [Fault("hosts", rule, "`--hosts all`, or `hosts: all` in the experiment")]
                )
            return run_of(experiment, directory, display)
        if experiment.spec.program is not None:
            rule = "a network where a command trains is not split over hosts"
            raise SpecError(experiment.file, [Fault("hosts", rule, "leave it out")])
        hosts = Hosts.load(hosts_file or Path("hosts.yaml"))
        return SplitRun(experiment, directory, display, machines_of(experiment, hosts), strict)

    return make


def machines_of(experiment: Experiment, hosts: Hosts) -> dict[str, Machine]:
    """Return the machines that an experiment's `hosts` asks for. Raises SpecError for one that is not in the file."""
    wanted = experiment.spec.hosts
    names = list(hosts.by_name)
    if isinstance(wanted, list):
        names = wanted
    elif isinstance(wanted, dict):
        names = list(dict.fromkeys(wanted.values()))
    if unknown := [name for name in names if name not in hosts.by_name]:
        rule, remedy = f"{hosts.file} has no host {unknown[0]!r}", f"of {', '.join(hosts.by_name)}"
        raise SpecError(experiment.file, [Fault("hosts", rule, remedy)])
    addresses = {name: IPv4Address(hosts.by_name[name].address) for name in names}
    return {name: Machine(at, None if _is_own(at) else Ssh.of(hosts, name)) for name, at in addresses.items()}


def _is_own(address: IPv4Address) -> bool:
    """Return whether an address is this machine's."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((str(address), 0))
        except OSError:
            return False
    return True


class SplitRun(Run):
    """An experiment being executed on several hosts."""

    def __init__(
        self,
        experiment: Experiment,
        directory: RunDirectory,
        display: Display,
        machines: Mapping[str, Machine],
        strict: bool,
    ) -> None:
        """Prepare the run. Raises SpecError when the workers or graphs do not fit the scheme."""
        super().__init__(experiment, directory, display)
        self._machines = machines
        self._strict = strict
        self._forwardings: list[Forwarding] = []

    def testbed(self, run_log: RunLog, guard: Guard) -> Testbed:
        """Start the hosts' processes and return a testbed over them.

        Raises:
            SpecError: A link declares less delay than its hosts are apart.
            HostLost: A host does not answer.
            TooMuch: The run is strict, and exceeds the hosts' budgets.
        """
        experiment, display = self.experiment, self.display
        guard.allow(IMAGE_S, "starting the hosts")
        token = secrets.token_bytes(TOKEN_BYTES)
        with display.step(f"{count(len(self._machines), 'host')}, and the paths between them"):
            self._hosts = guard.enter_context(self._started(token))
            plan, excess = self._fitting_plan()
        if excess is not None:
            if self._strict:
                raise TooMuch(excess)
            display.say(f"  [yellow]{escape(excess)}[/]")
        for host in plan.hosts:
            display.say(f"  {host}: {', '.join(plan.assignment.sites_on(host))}")
        self._host_of = {worker.name: plan.assignment.host_of[worker.site] for worker in experiment.topology.workers}
        settings = PartSettings(experiment.spec.backend, experiment.spec.transport == "fitted")
        return SplitTestbed(self.directory.id, plan, self._hosts, settings, run_log.put_in_force, display.step)

    def fleet(self, network: str, control: Path) -> Fleet:
        """Return the workers' containers on all hosts."""
        return SplitFleet(self._hosts, self._host_of)

    def connect(self, testbed: Testbed, guard: Guard) -> None:
        """Lead the workers of other hosts to the controller's sockets through SSH, never over the emulated network.

            worker's container          its host                     the controller's host
            /run/testbed/control.sock - sshd ==== hosts' network ==== ssh - control/<worker>/control.sock

        A worker finds the same socket as on one machine, and the controller hears each worker at the worker's own
        socket: neither knows that there are several hosts.

        Raises:
            CannotRun: A host's SSH server does not forward sockets.
        """
        for host, machine in self._machines.items():
            here = {worker: Path(worker, SOCKET) for worker, own in self._host_of.items() if own == host}
            sockets = {worker: testbed.control / socket for worker, socket in here.items()}
            if machine.ssh is not None:
                folder: Path = self._hosts.call(host, "forwarded_folder")
                sockets = {worker: folder / str(number) for number, worker in enumerate(here)}
                forwarded = {sockets[worker]: socket for worker, socket in here.items()}
                self._forwardings.append(guard.enter_context(machine.ssh.forwarding(forwarded, testbed.control)))
            self._hosts.call(host, "connect", sockets)

    def broken(self) -> str | None:
        """Return which host's workers no longer reach the controller, and why; None while all do."""
        return next(filter(None, (forwarding.failure for forwarding in self._forwardings)), None)

    @contextmanager
    def _started(self, token: bytes) -> Iterator[SplitHosts]:
        """Start a process on each machine.

        Raises:
            EmulationError: This machine is none of the hosts, or a host can't answer probes.
            HostLost: A host does not answer.
        """
        if not any(machine.ssh is None for machine in self._machines.values()):
            raise EmulationError(
                f"this machine is none of the run's hosts ({', '.join(self._machines)}): start the run on one of them; "
                "the controller then runs there"
            )
        with ExitStack() as stack:
            started: dict[str, HostProcess] = {}
            for name, machine in self._machines.items():
                started[name] = host = HostProcess(name, machine.command, machine.address, token)
                stack.callback(host.close)
            addresses = {name: machine.address for name, machine in self._machines.items()}
            hosts = stack.enter_context(SplitHosts(started, addresses, token))
            try:
                codes = hosts.each("code")
            except AttributeError as error:
                where = "; ".join(getattr(error, "__notes__", ()))
                text = f"the program {where} is of an older version; check out one commit on all hosts"
                raise EmulationError(text) from error
            check_versions(codes)
            yield hosts

    def _fitting_plan(self) -> tuple[SplitPlan, str | None]:
        """Return the plan with the least cut that keeps hosts within their budgets, and None.

        Where there is none, return the plan with the least cut of all, and what the budgets lack. Raises SpecError
        where a link is too short for the hosts that it would be cut between.
        """
        experiment, underlay = self.experiment, self._hosts.underlay()
        budgets: dict[str, Budget] = self._hosts.each("budget", lambda _: (experiment.spec.backend,))
        asked = need(experiment, next(iter(budgets.values())))
        speeds = {worker.name: worker.speed for worker in experiment.topology.workers}
        total = sum(speeds.values())
        cores = {name: asked.cores * speed / total for name, speed in speeds.items()}
        pinned = experiment.spec.hosts if isinstance(experiment.spec.hosts, dict) else {}
        topologies = [experiment.topology, *experiment.networks.values()]
        capacities = {
            name: (self._machines[name].address, Capacity(budget.bits_per_second * USABLE, float(budget.cores)))
            for name, budget in budgets.items()
        }
        try:
            return plan_split(topologies, cores, capacities, pinned, underlay, experiment.file), None
        except SpecError as error:
            free = {name: (address, Capacity()) for name, (address, _) in capacities.items()}
            plan = plan_split(topologies, cores, free, pinned, underlay, experiment.file)
            return plan, f"the hosts' budgets are too small: {error.faults[0].problem}"


def check_versions(codes: Mapping[str, str]) -> None:
    """Check that all hosts hold the same program, by a hash of each host's. Raises EmulationError."""
    if len(set(codes.values())) > 1:
        usual = Counter(codes.values()).most_common(1)[0][0]
        others = ", ".join(host for host, code in codes.items() if code != usual)
        text = f"{others} and the other hosts hold different versions of the program; check out one commit on all"
        raise EmulationError(text)


class SplitFleet(Fleet):
    """The workers' containers on several hosts: each host has an engine, and the containers of its sites."""

    def __init__(self, hosts: SplitHosts, host_of: Mapping[str, str]) -> None:
        """Build the worker image on every host that lacks it. `host_of` has the host of each worker.

        Raises:
            EngineError: A host's engine does not answer.
            ImageError: The image could not be built.
        """
        self._hosts, self._host_of = hosts, host_of
        self.limits = None  # each host knows those of its own containers
        # The first host builds alone: hosts may share a folder, in which the files for images are made once.
        hosts.call(next(iter(hosts.hosts)), "worker_image")
        made = hosts.each("worker_image")
        self.image = ", ".join(sorted(set(made.values())))

    def image_record(self) -> dict[str, Any]:
        """Return the record of the first host's image: all hosts build theirs from one lock."""
        return dict(self._hosts.call(next(iter(self._hosts.hosts)), "image_record"))

    def start(self, requests: Iterable[ContainerRequest]) -> Mapping[str, ProcessIdentity]:
        """Start the containers on their hosts. Returns no processes, since these are the hosts' own."""
        shares: dict[str, list[ContainerRequest]] = {name: [] for name in self._hosts.hosts}
        for request in requests:
            shares[self._host_of[request.worker.name]].append(request)
        self._hosts.each("start", lambda host: (shares[host],))
        return {}

    @contextmanager
    def replacing(self, workers: Iterable[str]) -> Iterator[None]:
        """Replace no workers: a run's swap keeps them."""
        if list(workers):
            raise NotImplementedError(
                "a swap can't change the limits (cpus, memory) of workers while the network is split over hosts"
            )
        yield

    def kill(self, worker: str, sent: signal.Signals = signal.SIGKILL) -> None:
        """Send a signal to a worker's program on its host."""
        self._of(worker, "kill", sent)

    def death(self, worker: str) -> str:
        """Return how a worker's program ended, as the end of a sentence."""
        return str(self._of(worker, "death"))

    def exit_code(self, worker: str) -> int | None:
        """Return the exit code of a worker's program that has ended; None if its container is gone."""
        code: int | None = self._of(worker, "exit_code")
        return code

    def restart(self, request: ContainerRequest) -> ProcessIdentity:
        """Replace a worker's container on its host's part of the network."""
        name = request.worker.name
        first: ProcessIdentity = self._hosts.call(self._host_of[name], "restart", request)
        return first

    def logs(self, worker: str) -> bytes:
        """Return the end of a worker's output."""
        return bytes(self._of(worker, "logs"))

    def running(self) -> dict[str, bool]:
        """Return whether each worker's container is running, on all hosts. Those of a lost host are not."""
        found: dict[str, bool] = {}
        for host in self._hosts.hosts:
            try:
                found |= self._hosts.call(host, "running")
            except HostLost:
                found |= {worker: False for worker, own in self._host_of.items() if own == host}
        return found

    def drop(self, workers: Iterable[str]) -> None:
        """Remove the containers of these workers from their hosts."""
        for worker in workers:
            self._hosts.call(self._host_of[worker], "fleet.drop", [worker])

    def remove(self) -> None:
        """Do nothing: hosts remove their containers as they end, after the logs were read."""

    def _of(self, worker: str, method: str, *arguments: Any) -> Any:
        return self._hosts.call(self._host_of[worker], f"fleet.{method}", worker, *arguments)
