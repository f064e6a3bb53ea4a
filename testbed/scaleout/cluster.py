"""A cluster's life: `up` and `down`, over SSH.

This machine is the cluster's head: it makes no runs, and stays in the cluster whichever host is lost.
"""

from __future__ import annotations

import hashlib
import io
import secrets
import shlex
import socket
import subprocess
import tarfile
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import yaml

from testbed.atomic_file import write_text
from testbed.certificates import make_host_certificates
from testbed.run.errors import CannotRun
from testbed.scaleout import node
from testbed.scaleout.node import ClusterNode
from testbed.scaleout.ssh import Ssh
from testbed.spec.errors import Fault, SpecError
from testbed.spec.hosts import Hosts

HEAD = "head"

#: The hosts file as `up` read it: `down` finds the hosts by this copy, whatever the file says by then.
KEPT = node.FOLDER / "hosts.yaml"

#: The time limit for one host to leave the cluster, in seconds: a host that is gone must not hold up `down`.
LEAVE_S = 120.0

ROOT = Path(__file__).resolve().parents[2]

#: The part of a checkout that decides how a run goes: its code, and the versions of packages.
CODE = ("testbed", "pyproject.toml", "requirements.lock", "setup.sh")

#: The other files that setup.sh and experiments need.
BESIDE = ("containers", "experiments", "topologies", "traces", "README.md")

T = TypeVar("T")


def up(hosts: Hosts, say: Callable[[str], None]) -> None:
    """Make the hosts ready and start a cluster of them. After an error nothing of the cluster is left.

    Raises:
        SpecError: This machine is one of the hosts, or the hosts are on several networks.
        CannotRun: A host can't be reached, made ready or started, or a cluster is up already.
    """
    if node.CONFIGURATION.exists():
        raise CannotRun(f"the cluster {node.read().cluster} is up; `testbed cluster down` takes it down")
    head = _own_address(hosts)
    machines = [Ssh.of(hosts, name) for name in hosts.by_name]
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
    except BaseException:
        down(lambda _: None)
        raise
    say(f"{len(machines)} hosts are up; `testbed cluster doctor` says what they can do")


def down(say: Callable[[str], None]) -> list[str]:
    """Take the cluster away from every host and from this machine.

    Returns:
        One line for each host that could not be reached.

    Raises:
        CannotRun: No cluster is up.
    """
    node.read()
    lost = []
    if KEPT.exists():
        hosts = Hosts.load(KEPT)
        machines = [Ssh.of(hosts, name) for name in hosts.by_name]

        def leave(ssh: Ssh) -> str | None:
            try:
                ssh.run(_node_command(ssh, "stop"), timeout_s=LEAVE_S)
            except CannotRun as error:
                return str(error)
            return None

        lost = [error for error in _on_all(machines, leave) if error]
        say(f"{len(machines) - len(lost)} of {len(machines)} hosts are left as they were")
    node.stop()
    return lost


def _on_all(machines: Iterable[Ssh], action: Callable[[Ssh], T]) -> list[T]:
    """Run `action` on all hosts in parallel. Raises CannotRun, listing each host that failed."""
    machines = list(machines)
    with ThreadPoolExecutor(len(machines)) as pool:
        futures = [pool.submit(action, ssh) for ssh in machines]
    failures = [str(error) for future in futures if isinstance(error := future.exception(), CannotRun)]
    if failures:
        raise CannotRun("\n".join(failures))
    return [future.result() for future in futures]


def _node_command(ssh: Ssh, verb: str) -> str:
    return f"cd {shlex.quote(ssh.host.folder)} && .venv/bin/python -m testbed.scaleout.node {verb}"


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
    """Copy this checkout to the host's folder where that is empty. Raises CannotRun where it holds another version."""
    folder = shlex.quote(ssh.host.folder)
    if ssh.run(f"test -e {folder}/setup.sh && echo there || true").strip() != "there":
        ssh.run(f"umask 022; mkdir -p {folder} && tar -xz -C {folder}", _packed())
    sums = "".join(
        f"{hashlib.sha256(each.read_bytes()).hexdigest()}  {each.relative_to(ROOT)}\n" for each in _files(CODE)
    )
    wrong = ssh.run(f"cd {folder} && sha256sum --check --quiet - 2>&1 | head -3 || true", sums.encode()).strip()
    if wrong:
        raise CannotRun(
            f"{ssh.name}: {ssh.host.folder} holds another version of this program ({'; '.join(wrong.splitlines())}); "
            "check out this machine's commit there, or move the folder away, and this version is copied to the host"
        )


def _files(names: tuple[str, ...]) -> Iterator[Path]:
    """Yield the checkout's files below these names, sorted, without build products."""
    found = {each for name in names for each in [ROOT / name, *(ROOT / name).rglob("*")] if each.is_file()}
    yield from sorted(each for each in found if "__pycache__" not in each.parts and each.suffix != ".so")


def _packed() -> bytes:
    """Return the checkout as a compressed tar archive: the files that git tracks, or all files where git is missing."""
    done = subprocess.run(["git", "-C", str(ROOT), "ls-files", "-z", *CODE, *BESIDE], capture_output=True)
    tracked = [ROOT / name for name in done.stdout.decode().split("\0") if name]
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for each in tracked if done.returncode == 0 and tracked else _files((*CODE, *BESIDE)):
            if each.is_file():
                archive.add(each, str(each.relative_to(ROOT)))
    return buffer.getvalue()
