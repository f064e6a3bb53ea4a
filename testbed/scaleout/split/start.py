"""The hosts of a run: which the file asks for, how each is come to, what it may be given, and how workers come back."""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from ipaddress import IPv4Address
from typing import NamedTuple

from testbed.emulation.errors import EmulationError
from testbed.emulation.host.budget import USABLE, Budget, need
from testbed.emulation.testbed import Testbed
from testbed.scaleout.split.control import ControlRelay
from testbed.scaleout.split.placing import Capacity
from testbed.scaleout.split.plan import SplitPlan, plan_split
from testbed.scaleout.split.process import HostProcess
from testbed.scaleout.split.split import SplitHosts
from testbed.scaleout.split.testbed import PartSettings
from testbed.spec.errors import Fault, SpecError
from testbed.spec.experiment import Experiment
from testbed.spec.hosts import Host, Hosts

MODULE = "testbed.scaleout.split.process"


class Machine(NamedTuple):
    """A host: its address on the hosts' network, and the command that starts the process for its part there."""

    address: IPv4Address
    command: tuple[str, ...]


Machines = Mapping[str, Machine]


def machines_of(experiment: Experiment, hosts: Hosts) -> Machines:
    """The machines that an experiment's `hosts` asks for. SpecError for one that the hosts file does not have."""
    wanted = experiment.spec.hosts
    names = list(hosts.by_name)
    if isinstance(wanted, list):
        names = wanted
    elif isinstance(wanted, dict):
        names = list(dict.fromkeys(wanted.values()))
    if unknown := [name for name in names if name not in hosts.by_name]:
        rule, remedy = f"{hosts.file} has no host {unknown[0]!r}", f"of {', '.join(hosts.by_name)}"
        raise SpecError(experiment.file, [Fault("hosts", rule, remedy)])
    return {name: Machine(IPv4Address(one.address), _command(one, hosts)) for name, one in _of(names, hosts)}


def _of(names: list[str], hosts: Hosts) -> list[tuple[str, Host]]:
    return [(name, hosts.by_name[name]) for name in names]


def _command(host: Host, hosts: Hosts) -> tuple[str, ...]:
    """What starts the process: here, or there over SSH, as root."""
    if is_own(IPv4Address(host.address)):
        return (sys.executable, "-m", MODULE)
    known = ("-o", f"UserKnownHostsFile={hosts.path(hosts.spec.known_hosts)}") if hosts.spec.known_hosts else ()
    key = ("-i", str(hosts.path(host.key))) if host.key else ()
    root = () if host.user == "root" else ("sudo", "--non-interactive")
    there = ("env", f"--chdir={host.folder}", f"{host.folder}/.venv/bin/python", "-m", MODULE)
    # A host that is cut off says nothing: SSH asks it every five seconds, three times.
    alive = ("-o", "BatchMode=yes", "-o", "ServerAliveInterval=5", "-o", "ServerAliveCountMax=3")
    return ("ssh", "-p", str(host.port), *alive, *known, *key, f"{host.user}@{host.address}", *root, *there)


def is_own(address: IPv4Address) -> bool:
    """Whether an address is this machine's."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((str(address), 0))
        except OSError:
            return False
    return True


def own_address(machines: Machines) -> IPv4Address:
    """This machine's, on the hosts' network. EmulationError where it is none of the hosts."""
    own = [machine.address for machine in machines.values() if is_own(machine.address)]
    if not own:
        raise EmulationError(
            f"this machine is none of the run's hosts ({', '.join(machines)}): call it on one of them, where the "
            "controller then is"
        )
    return own[0]


@contextmanager
def start_hosts(machines: Machines, token: bytes) -> Iterator[SplitHosts]:
    """A process on each machine. HostLost for one where none starts, OSError where another has its port."""
    own_address(machines)
    with ExitStack() as stack:
        started: dict[str, HostProcess] = {}
        for name, machine in machines.items():
            started[name] = host = HostProcess(name, machine.command, machine.address, token)
            stack.callback(host.close)
        addresses = {name: machine.address for name, machine in machines.items()}
        yield stack.enter_context(SplitHosts(started, addresses, token))


def fitting_plan(experiment: Experiment, hosts: SplitHosts, machines: Machines) -> tuple[SplitPlan, str | None]:
    """The placing with the least cut that keeps hosts within their budgets; where none does, the least cut of all, and
    what the budgets lack. SpecError where a link is too short for the hosts that it would be cut between."""
    underlay = hosts.underlay()
    budgets: dict[str, Budget] = hosts.each("budget", lambda _: (experiment.spec.backend,))
    asked = need(experiment, next(iter(budgets.values())))
    speeds = {worker.name: worker.speed for worker in experiment.topology.workers}
    whole = sum(speeds.values())
    cores = {name: asked.cores * speed / whole for name, speed in speeds.items()}
    pinned = experiment.spec.hosts if isinstance(experiment.spec.hosts, dict) else {}
    topologies = [experiment.topology, *experiment.networks.values()]
    capacities = {
        name: (machines[name].address, Capacity(budget.bits_per_second * USABLE, float(budget.cores)))
        for name, budget in budgets.items()
    }
    free = {name: (address, Capacity()) for name, (address, _) in capacities.items()}
    plan = plan_split(topologies, cores, free, pinned, underlay, experiment.file)
    try:
        return plan_split(topologies, cores, capacities, pinned, underlay, experiment.file), None
    except SpecError as error:
        return plan, f"the hosts' budgets are too small: {error.faults[0].problem}"


def settings_of(experiment: Experiment) -> PartSettings:
    """What the file asks of all parts."""
    return PartSettings(experiment.spec.backend, experiment.spec.transport == "fitted")


@contextmanager
def way_in(testbed: Testbed, hosts: SplitHosts, host_of: Mapping[str, str], address: IPv4Address) -> Iterator[None]:
    """While inside, workers come to the controller on this host, by their hosts' proxies."""
    with ControlRelay(testbed.folder, testbed.control, host_of, address) as way:
        hosts.each("connect", lambda host: (way.gateway_for(host),))
        yield
