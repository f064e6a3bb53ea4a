"""Joining a run with the address, name and secret that environment variables give.

    TESTBED_CONTROLLER   tcp:HOST:PORT or unix:PATH
    TESTBED_MEMBER       the member's name; by default the worker's name, TESTBED_WORKER, with `.0`, `.1`, … if several
                         processes run on the worker
    TESTBED_TLS          the folder with the member's certificate; or
    TESTBED_TOKEN_FILE   the file with the member's token; a Unix socket needs no token
    TESTBED_LISTEN       the IPv4 address of one of this machine's interfaces, at which peers reach the member; by
                         default that of the interface that leads to the controller

A value may contain other variables, such as those that torchrun and Slurm set for each process:
`TESTBED_MEMBER=w{RANK}`, `TESTBED_TLS=tls/w{SLURM_PROCID}`.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from testbed.schema import ProtocolError, check_name
from testbed.sync.control_channel import endpoint
from testbed.sync.errors import SyncError
from testbed.sync.session import Session, join
from testbed.sync.transport.sockets import first_address

CONTROLLER = "TESTBED_CONTROLLER"
MEMBER, WORKER = "TESTBED_MEMBER", "TESTBED_WORKER"
#: The longest wait in seconds for the other members, as in process groups of PyTorch.
PATIENCE_S = 1800.0

TOKEN_FILE, TLS, LISTEN = "TESTBED_TOKEN_FILE", "TESTBED_TLS", "TESTBED_LISTEN"


@dataclass(frozen=True, slots=True)
class MemberEnvironment:
    """The arguments with which a process joins a run, see `sync.join`."""

    #: The controller's address.
    control: str
    #: The member's name.
    name: str
    #: The IPv4 address at which peers reach the member; empty for the first address that is not the loopback's.
    listen: str = ""
    token: str = ""
    #: The folder with the member's certificate.
    tls: Path | None = None


def join_by_environment(device: str, environ: Mapping[str, str] = os.environ) -> Session:
    """Join the run at the controller that environment variables name, and return the session.

    The other members may come up to PATIENCE_S later: a script may evaluate its model before it joins.

    Args:
        device: The device that the member trains on, for the controller's records.
        environ: The environment variables.

    Raises:
        SyncError: A variable is missing or invalid, or `join` failed.
    """
    member = member_of(environ)
    return join(member.control, member.name, member.listen, device, PATIENCE_S, member.token, tls=member.tls)


def member_of(environ: Mapping[str, str]) -> MemberEnvironment:
    """Return the arguments that the environment gives.

    Raises:
        SyncError: A variable is missing or invalid; names it as `field`.
    """
    control = _of(environ, CONTROLLER)
    if not control:
        raise SyncError(
            f"{CONTROLLER} is not set: write {CONTROLLER}=tcp:HOST:PORT into the environment", field=CONTROLLER
        )
    name = _of(environ, MEMBER) or _worker(environ)
    if not name:
        raise SyncError(
            f"{CONTROLLER}={control} names a controller, but no variable gives this member's name: set {MEMBER}",
            field=MEMBER,
        )
    try:
        check_name(name)
    except ProtocolError as error:
        raise SyncError(f"{MEMBER}={name}: {error}", field=MEMBER, given=name) from error
    try:
        address = endpoint(control)
    except SyncError as error:
        raise error.located(CONTROLLER, field=CONTROLLER) from None
    host = address[0] if isinstance(address, tuple) else ""
    token, tls = _of(environ, TOKEN_FILE), _of(environ, TLS)
    listen = _of(environ, LISTEN)
    if not listen:
        try:
            listen = address_towards(host)
        except SyncError as error:
            raise SyncError(f"{error}. Set {LISTEN} to this machine's IPv4 address", field=LISTEN) from error
    return MemberEnvironment(control, name, listen, _read(token) if token else "", Path(tls) if tls else None)


def address_towards(host: str) -> str:
    """Return the address of the interface that leads to a host; empty if `host` is. No packet is sent.

    A name of this machine itself, which /etc/hosts may give the loopback's address, leads to the first other address.

    Raises:
        SyncError: There is no route to the host.
    """
    if not host:
        return ""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((host.strip("[]"), 9))
        except OSError as error:
            raise SyncError(f"no route leads to {host}: {error}") from error
        found = str(probe.getsockname()[0])
    named = host != "localhost" and not host.strip("[]").startswith("127.")
    return (first_address() or found) if named and found.startswith("127.") else found


def _worker(environ: Mapping[str, str]) -> str | None:
    """Return the worker's name, and the local rank if several processes run on it; None outside a worker."""
    worker = environ.get(WORKER)
    several = environ.get("LOCAL_WORLD_SIZE", "1") != "1"
    return f"{worker}.{environ.get('LOCAL_RANK', '0')}" if worker and several else worker


def _of(environ: Mapping[str, str], variable: str) -> str:
    """Return a variable's value with variables in braces put in; empty if it is not set."""
    value = environ.get(variable, "")
    try:
        return value.format_map(environ)
    except (KeyError, ValueError, IndexError, AttributeError, TypeError) as error:
        raise SyncError(
            f"{variable}={value}: can't replace {error}; in braces write only names of variables that are set",
            field=variable,
            given=value,
        ) from error


def _read(file: str) -> str:
    try:
        return Path(file).read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "the file is no text"
        raise SyncError(
            f"{TOKEN_FILE}={file}: {why}; write the file with this member's token",
            field=TOKEN_FILE,
            file=file,
        ) from error
