"""A cluster's life: `up` over SSH, `down`. This machine is its head, which makes no runs, and whatever host is lost, it
goes on."""

from __future__ import annotations

import secrets
import shlex
import socket
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import yaml

from testbed.atomic_file import write_text
from testbed.certificates import make_host_certificates
from testbed.run.errors import CannotRun
from testbed.scaleout import node
from testbed.scaleout.checkout import bring, make_ready
from testbed.scaleout.node import ClusterNode
from testbed.scaleout.ssh import Ssh
from testbed.spec.errors import Fault, SpecError
from testbed.spec.hosts import Hosts

HEAD = "head"

#: What the hosts file said as `up` read it: by it `down` finds them, whatever it says by then.
KEPT = node.FOLDER / "hosts.yaml"

#: A host that is gone is not waited for longer when it is to be left.
LEAVE_S = 120.0

T = TypeVar("T")


def up(hosts: Hosts, say: Callable[[str], None]) -> None:
    """Make the hosts ready and start a cluster of them. SpecError where this machine is one of them, CannotRun where
    one can't be reached, made ready or started; nothing is left then."""
    if node.CONFIGURATION.exists():
        raise CannotRun(f"the cluster {node.read().cluster} is up; `testbed cluster down` takes it down")
    head = _own_address(hosts)
    ways = [Ssh.of(hosts, name) for name in hosts.by_name]
    say(f"this machine, {head}, is the head")
    _each(ways, bring)
    say(f"{len(ways)} hosts hold this version of the program")
    _each(ways, make_ready)
    say("setup.sh ran on each")
    token = secrets.token_hex(32)
    addresses = {HEAD: head} | {way.name: way.host.address for way in ways}
    shown = make_host_certificates(addresses)
    allowed = list(addresses.values())

    def configuration(name: str) -> ClusterNode:
        own = None if name == HEAD else name
        given = {**shown[name], node.TOKEN: token}
        return ClusterNode(hosts.spec.name, addresses[name], head, own, allowed, given)

    node.start(configuration(HEAD))
    try:
        write_text(KEPT, kept(hosts), mode=0o600)
        _each(ways, lambda way: way.run(_at(way, "start"), configuration(way.name).dump().encode()))
    except BaseException:
        down(lambda _: None)
        raise
    say(f"{len(ways)} hosts are up; `testbed cluster doctor` says what they can do")


def down(say: Callable[[str], None]) -> list[str]:
    """Take the cluster away from every host, and from here; what could not be reached, a line each. CannotRun when none
    is up."""
    node.read()
    lost = []
    if KEPT.exists():
        ways = [Ssh.of(hosts, name) for hosts in [Hosts.load(KEPT)] for name in hosts.by_name]

        def leave(way: Ssh) -> str | None:
            try:
                way.run(_at(way, "stop"), timeout_s=LEAVE_S)
            except CannotRun as error:
                return str(error)
            return None

        lost = [each for each in _each(ways, leave) if each]
        say(f"{len(ways) - len(lost)} of {len(ways)} hosts are left as they were")
    node.stop()
    return lost


def _each(ways: Iterable[Ssh], do: Callable[[Ssh], T]) -> list[T]:
    """Do it on all hosts at once; CannotRun with what went wrong on any."""
    ways = list(ways)
    with ThreadPoolExecutor(len(ways)) as pool:
        futures = [pool.submit(do, way) for way in ways]
    wrong = [str(error) for future in futures if (error := future.exception()) and isinstance(error, CannotRun)]
    if wrong:
        raise CannotRun("\n".join(wrong))
    return [future.result() for future in futures]


def _at(way: Ssh, verb: str) -> str:
    return f"cd {shlex.quote(way.host.folder)} && .venv/bin/python -m testbed.scaleout.node {verb}"


def _own_address(hosts: Hosts) -> str:
    """This machine's address on the hosts' network. It has one there when packets to the hosts leave from one."""
    found = {}
    for name, host in hosts.by_name.items():
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            try:
                probe.connect((host.address, 9))  # sends nothing
            except OSError as error:
                raise CannotRun(f"{name}: there is no way from here to {host.address}: {error.strerror}") from error
            found[name] = str(probe.getsockname()[0])
        if found[name] == host.address:
            remedy = "the other machines alone: the one where `cluster up` is called is the head, and makes no runs"
            raise SpecError(hosts.file, [Fault(f"hosts.{name}.address", "is this machine's own", remedy)])
    if len(set(found.values())) > 1:
        ways = ", ".join(f"{name} from {address}" for name, address in found.items())
        raise SpecError(
            hosts.file, [Fault("hosts", f"lie on several networks of this machine ({ways})", "those of one")]
        )
    return next(iter(found.values()))


def kept(hosts: Hosts) -> str:
    """The hosts file, with the files that it names in full: it lies elsewhere now."""
    spec = hosts.spec.model_dump(exclude_none=True)
    if hosts.spec.known_hosts:
        spec["known_hosts"] = str(hosts.path(hosts.spec.known_hosts).resolve())
    for name, host in hosts.by_name.items():
        if host.key:
            spec["hosts"][name]["key"] = str(hosts.path(host.key).resolve())
    return str(yaml.safe_dump(spec, sort_keys=False))
