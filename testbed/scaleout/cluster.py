"""A cluster's life: `up` and `down` over SSH, and between them the doctor, over Ray.

This machine is the cluster's head: it makes no runs, and stays in the cluster whichever host is lost.

The doctor says what each host can do, and measures the path between each two of them. A Ray actor on each host, the
agent, answers. No packet of an emulated network passes through an agent.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import platform
import re
import secrets
import shlex
import socket
import subprocess
import tarfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Any, TypeVar

import yaml

from testbed.atomic_file import write_text
from testbed.certificates import make_host_certificates
from testbed.emulation.host.budget import host_budget
from testbed.emulation.shaping import available_backends
from testbed.run.errors import CannotRun
from testbed.scaleout import node
from testbed.scaleout.node import MEASURE_PORT, ClusterNode, connected, hosts_alive
from testbed.scaleout.split.probes import ClockSample
from testbed.scaleout.ssh import Ssh
from testbed.spec.errors import Fault, SpecError
from testbed.spec.hosts import Hosts

#: This machine among the hosts; no host can have a name with an underscore.
HEAD = "_head"

#: The hosts file as `up` read it: `down` finds the hosts by this copy, whatever the file says by then.
KEPT = node.FOLDER / "hosts.yaml"

#: The time limit for one host to leave the cluster, in seconds: a host that is gone must not hold up `down`.
LEAVE_S = 120.0
#: The time limit for a host's first answer, in seconds: the host's shell, or its home folder, may hang.
FREE_S = 60.0

ROOT = Path(__file__).resolve().parents[2]

#: The part of a checkout that decides how a run goes: its code, and the versions of packages.
CODE = ("testbed", "pyproject.toml", "requirements.lock", "setup.sh")

#: The other files that setup.sh and experiments need.
BESIDE = ("containers", "experiments", "topologies", "traces", "README.md")

#: Readings of a host's clock; the one with the shortest round trip counts.
READINGS = 12

#: An agent that does not answer within this many seconds is on a host that is lost.
ANSWER_S = 90.0

#: Pings of a pair of hosts, 50 ms apart.
PINGS = 20
CAPACITY_S, CONNECT_MS = 2, 5000

#: The MTUs that are tried, the largest first: jumbo frames; VXLAN around packets of 1,500 bytes; Ethernet.
MTUS = (9000, 1550, 1500)
#: The headers of IP and ICMP, in bytes.
PING_HEADERS = 28

T = TypeVar("T")


def up(hosts: Hosts, say: Callable[[str], None]) -> None:
    """Make the hosts ready, start a cluster of them, and report steps by `say`. An error takes the cluster down again.

    Raises:
        SpecError: This machine is one of the hosts, or the hosts are on several networks.
        CannotRun: A host can't be reached, made ready or started, or a host or this machine is in a cluster already.
    """
    if node.CONFIGURATION.exists():
        raise CannotRun(f"the cluster {node.read().cluster} is up; `testbed cluster down` takes it down")
    head = _own_address(hosts)
    machines = [Ssh.of(hosts, name) for name in hosts.by_name]
    _on_all(machines, _check_free)
    say(f"this machine, {head}, is the head")
    _on_all(machines, _bring_checkout)
    say(f"{len(machines)} hosts hold this version of the program")
    _on_all(machines, lambda ssh: ssh.run(f"cd {shlex.quote(ssh.host.folder)} && ./setup.sh scaleout"))
    say("setup.sh ran on each host")
    token = secrets.token_hex(32)
    addresses = {HEAD: head} | {ssh.name: ssh.host.address for ssh in machines}
    certificates = make_host_certificates(addresses)
    allowed = list(addresses.values())

    def configuration(name: str) -> ClusterNode:
        own = None if name == HEAD else name
        given = {**certificates[name], node.TOKEN: token}
        return ClusterNode(hosts.spec.name, addresses[name], head, own, allowed, given)

    node.start(configuration(HEAD))
    try:
        write_text(KEPT, portable_text(hosts), mode=0o600)
        _on_all(machines, lambda ssh: ssh.run(_node_command(ssh, "start"), configuration(ssh.name).dump().encode()))
    except BaseException as error:
        for line in down(lambda _: None):
            error.add_note(f"not undone: {line}")
        raise
    say(f"{len(machines)} hosts are up; `testbed cluster doctor` says what they can do")


def down(say: Callable[[str], None]) -> list[str]:
    """End the cluster's processes on every host and on this machine. A host that is in another cluster is left alone.

    Returns:
        One line for each host that could not be reached, or was left alone.

    Raises:
        CannotRun: No cluster is up.
    """
    head = node.read().head
    lost = []
    if KEPT.exists():
        hosts = Hosts.load(KEPT)
        machines = [Ssh.of(hosts, name) for name in hosts.by_name]

        def leave(ssh: Ssh) -> str | None:
            try:
                ssh.run(_node_command(ssh, f"stop {head}"), timeout_s=LEAVE_S)
            except CannotRun as error:
                return f"{error}\n    if it was not reached, run there as root: {_node_command(ssh, f'stop {head}')}"
            return None

        lost = [error for error in _on_all(machines, leave) if error]
        say(f"{len(machines) - len(lost)} of {len(machines)} hosts are left as they were")
    node.stop()
    return lost


def _on_all(machines: Sequence[Ssh], action: Callable[[Ssh], T]) -> list[T]:
    """Run `action` on all hosts in parallel. Raises CannotRun, listing each host that failed."""
    with ThreadPoolExecutor(len(machines)) as pool:
        futures = [pool.submit(action, ssh) for ssh in machines]
    failures = [str(error) for future in futures if isinstance(error := future.exception(), CannotRun)]
    if failures:
        raise CannotRun("\n".join(failures))
    return [future.result() for future in futures]


def _node_command(ssh: Ssh, verb: str) -> str:
    return f"cd {shlex.quote(ssh.host.folder)} && .venv/bin/python -m testbed.scaleout.node {verb}"


def _check_free(ssh: Ssh) -> None:
    """Raise CannotRun for a host that is in a cluster: a failed `up` would end that cluster's runs on the host."""
    if ssh.run(f"test -e {node.CONFIGURATION} && echo there || true", timeout_s=FREE_S).strip() == "there":
        raise CannotRun(
            f"{ssh.name}: the host is in a cluster already; run `testbed cluster down` where that cluster was "
            f"brought up, or end it on the host alone: {_node_command(ssh, 'stop')}"
        )


def _own_address(hosts: Hosts) -> str:
    """Return this machine's address on the hosts' network: the one from which packets to the hosts leave."""
    found = {}
    for name, host in hosts.by_name.items():
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            try:
                probe.connect((host.address, 9))  # sends nothing
            except OSError as error:
                raise CannotRun(f"{name}: no route from this machine to {host.address}: {error.strerror}") from error
            found[name] = str(probe.getsockname()[0])
        if found[name] == host.address:
            remedy = "the other machines alone: the one where `cluster up` is called is the head, and makes no runs"
            raise SpecError(hosts.file, [Fault(f"hosts.{name}.address", "is this machine's own", remedy)])
    if len(set(found.values())) > 1:
        own = ", ".join(f"{name} from {address}" for name, address in found.items())
        rule = f"are on several networks of this machine ({own})"
        raise SpecError(hosts.file, [Fault("hosts", rule, "hosts of one network")])
    return next(iter(found.values()))


def portable_text(hosts: Hosts) -> str:
    """Return the hosts file with absolute paths, so that it can be read from another folder."""
    spec = hosts.spec.model_dump(exclude_none=True)
    if hosts.spec.known_hosts:
        spec["known_hosts"] = str(hosts.path(hosts.spec.known_hosts).resolve())
    for name, host in hosts.by_name.items():
        if host.key:
            spec["hosts"][name]["key"] = str(hosts.path(host.key).resolve())
    return str(yaml.safe_dump(spec, sort_keys=False))


# The checkout on a host ----------------------------------------------------------------------------------------------


def _bring_checkout(ssh: Ssh) -> None:
    """Copy this checkout to the host's folder unless `setup.sh` is there. Raises CannotRun for another version."""
    folder = shlex.quote(ssh.host.folder)
    if ssh.run(f"test -e {folder}/setup.sh && echo there || true").strip() != "there":
        ssh.run(
            # One rename: a folder with other files is refused, and a copy is whole or not there.
            # Hosts may share a folder: the later one finds the other's copy.
            f"umask 022; mkdir -p $(dirname {folder}) && new=$(mktemp -d {folder}.XXXXXX) && chmod 755 $new || exit 1; "
            f"tar -xz --no-same-owner -C $new && mv --no-target-directory $new {folder} "
            f"|| {{ rm -rf $new; test -e {folder}/setup.sh; }}",
            _packed(),
        )
    sums = "".join(
        f"{hashlib.sha256(each.read_bytes()).hexdigest()}  {each.relative_to(ROOT)}\n" for each in _carried(CODE)
    )
    wrong = ssh.run(f"cd {folder} && sha256sum --check --quiet - 2>&1 | head -3 || true", sums.encode()).strip()
    if wrong:
        raise CannotRun(
            f"{ssh.name}: {ssh.host.folder} holds another version of this program ({'; '.join(wrong.splitlines())}); "
            "check out this machine's commit there, or move the folder away, and this version is copied to the host"
        )


def _carried(names: tuple[str, ...]) -> list[Path]:
    """Return the checkout's files below these names, sorted: those that git does not ignore.

    Where git is missing, or does not know the checkout: all but build products.
    """
    listed = ["git", "-C", str(ROOT), "ls-files", "-z", "--cached", "--others", "--exclude-standard", *names]
    with suppress(FileNotFoundError):
        done = subprocess.run(listed, capture_output=True)
        found = sorted({ROOT / name for name in done.stdout.decode().split("\0") if name})
        if done.returncode == 0 and found:
            return [each for each in found if each.is_file()]
    below = {each for name in names for each in [ROOT / name, *(ROOT / name).rglob("*")] if each.is_file()}
    return sorted(each for each in below if "__pycache__" not in each.parts and each.suffix != ".so")


def _packed() -> bytes:
    """Return the checkout's files as a compressed tar archive."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for each in _carried((*CODE, *BESIDE)):
            archive.add(each, str(each.relative_to(ROOT)))
    return buffer.getvalue()


# The doctor -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class HostFacts:
    """A host's facts, as its agent told them, and its clock against this machine's."""

    host: str
    address: str
    cores: int
    kernel: str
    #: The shaping backend, or None where none works.
    backend: str | None
    #: The measured budget in bits a second, or None where it was not measured.
    budget_bps: float | None
    #: How far the host's wall clock is ahead of this machine's, in seconds, and the largest possible error.
    clock_offset_s: float
    clock_bound_s: float


@dataclass(frozen=True)
class PairFacts:
    """The path from the first to the second of two hosts. A field is None where nothing came through."""

    hosts: tuple[str, str]
    round_trip_s: float | None
    jitter_s: float | None
    capacity_bps: float | None
    mtu: int | None


def examine() -> tuple[list[HostFacts], list[PairFacts]]:
    """Examine all live hosts, and each pair of them in turn.

    Raises:
        CannotRun: No cluster is up, or a host does not answer.
    """
    with connected() as ray:
        addresses = dict(sorted(hosts_alive(ray).items()))
        # An agent ends with the last reference to it.
        agents = {
            host: ray.remote(num_cpus=0, resources={f"host:{host}": 0.001}, max_concurrency=2)(HostAgent).remote()
            for host in addresses
        }

        def answer(host: str, reference: Any) -> Any:
            try:
                return ray.get(reference, timeout=ANSWER_S)
            except ray.exceptions.RayError as error:
                said = str(error).strip().partition("\n")[0]
                place = f"host {host} ({addresses[host]})"
                raise CannotRun(f"{place} does not answer: {said}; see that it is on and reachable") from error

        def clock_s(host: str) -> float:
            return float(answer(host, agents[host].clock_s.remote()))

        facts = []
        for host, agent in agents.items():
            found = answer(host, agent.facts.remote())
            offset_s, bound_s = clock_offset(partial(clock_s, host))
            facts.append(HostFacts(host, addresses[host], **found, clock_offset_s=offset_s, clock_bound_s=bound_s))
        pairs = []
        for one, other in combinations(addresses, 2):
            answer(other, agents[other].listen.remote())
            measured = answer(one, agents[one].measure.remote(addresses[other]))
            pairs.append(PairFacts((one, other), **measured))
        return facts, pairs


def clock_offset(read_s: Callable[[], float], now_s: Callable[[], float] = time.time) -> tuple[float, float]:
    """Return how far another clock is ahead of `now_s`, and the possible error, both in seconds (Cristian 1989).

    The other clock is read READINGS times by `read_s`, which takes some time. It was read at some moment between the
    question and the answer; the middle is wrong by half of that time at most.
    """
    samples = []
    for _ in range(READINGS):
        asked_s, other_s = now_s(), read_s()
        samples.append(ClockSample(asked_s, other_s, other_s, now_s()))
    best = min(samples, key=lambda sample: sample.round_trip_s)
    return best.offset_s, best.round_trip_s / 2


class HostAgent:
    """The Ray actor of one host: tells its facts and measures its paths."""

    def facts(self) -> dict[str, Any]:
        """Return the fields of HostFacts that are known on the host itself."""
        backend = next((name for name, wrong in available_backends().items() if wrong is None), None)
        budget = host_budget(backend) if backend else None
        return {
            "cores": os.cpu_count(),
            "kernel": platform.release(),
            "backend": backend,
            "budget_bps": budget.bits_per_second if budget else None,
        }

    def clock_s(self) -> float:
        """Return the host's time of day."""
        return time.time()

    def listen(self) -> None:
        """Start the server for one measurement of capacity. The server ends by itself when no client comes."""
        end = str(CAPACITY_S + 15)
        command = ["timeout", end, "iperf3", "--server", "--one-off", "--bind", node.read().address]
        command += ["--port", str(MEASURE_PORT), "--forceflush"]
        self._server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        assert self._server.stdout is not None
        self._server.stdout.readline()  # iperf3 has bound its port when it prints the first line

    def measure(self, address: str) -> dict[str, float | None]:
        """Measure the path to another host, which listens.

        Returns:
            The least round trip and the jitter in seconds, the largest of MTUS that passes unfragmented, and the rate
            that TCP reached within CAPACITY_S.
        """
        least, jitter = round_trip(_output(["ping", "-n", "-q", "-c", str(PINGS + 1), "-i", "0.05", address]))
        passing = (mtu for mtu in MTUS if _passes(address, mtu))
        command = ["iperf3", "--client", address, "--port", str(MEASURE_PORT), "--time", str(CAPACITY_S), "--json"]
        command += ["--connect-timeout", str(CONNECT_MS)]  # the kernel's own is two minutes
        found = json.loads(_output(command) or "{}")
        received = found.get("end", {}).get("sum_received", {}).get("bits_per_second")
        return {"round_trip_s": least, "jitter_s": jitter, "mtu": next(passing, None), "capacity_bps": received}


def round_trip(output: str) -> tuple[float | None, float | None]:
    """Return the least round trip and its mean deviation, in seconds, from the output of `ping -q`; or (None, None)."""
    found = re.search(r"= ([\d.]+)/[\d.]+/[\d.]+/([\d.]+) ", output)  # the word for the unit depends on the language
    return (float(found[1]) / 1e3, float(found[2]) / 1e3) if found else (None, None)


def _passes(address: str, mtu: int) -> bool:
    whole = ["-M", "do", "-s", str(mtu - PING_HEADERS)]
    command = ["ping", "-nq", "-c", "2", "-i", "0.2", "-W", "2", *whole, address]
    return subprocess.run(command, capture_output=True).returncode == 0


def _output(command: Sequence[str]) -> str:
    return subprocess.run(command, capture_output=True, text=True, errors="replace").stdout
