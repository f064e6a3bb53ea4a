"""Where a process joins, as the variables of its environment say.

TESTBED_CONTROLLER   tcp:HOST:PORT or unix:PATH
TESTBED_MEMBER       the member's name; else it is the worker's, TESTBED_WORKER, and that of several on a worker with
                     `.0`, `.1`, …
TESTBED_TLS          the folder of its certificate; or
TESTBED_TOKEN_FILE   the file of its token. Neither at a Unix socket
TESTBED_LISTEN       the IPv4 address at which the others reach it; that of the way to the controller, if not set

A variable may name others, which torchrun and Slurm set for each process: `TESTBED_MEMBER=w{RANK}`,
`TESTBED_TLS=tls/w{SLURM_PROCID}`.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from testbed.schema import ProtocolError, check_name
from testbed.sync.errors import SyncError
from testbed.sync.session import Session, join

CONTROLLER = "TESTBED_CONTROLLER"
MEMBER, WORKER = "TESTBED_MEMBER", "TESTBED_WORKER"
TOKEN_FILE, TLS, LISTEN = "TESTBED_TOKEN_FILE", "TESTBED_TLS", "TESTBED_LISTEN"


@dataclass(frozen=True, slots=True)
class MemberEnvironment:
    """Where a process joins, as whom, and what it shows; peers find it at the IPv4 address `listen`."""

    control: str
    name: str
    listen: str = ""
    token: str = ""
    tls: Path | None = None


def join_by_environment(device: str, environ: Mapping[str, str] = os.environ) -> Session:
    """Join where the environment says. SyncError where it does not say all of it, and what `join` raises."""
    member = member_of(environ)
    return join(member.control, member.name, member.listen, device, token=member.token, tls=member.tls)


def member_of(environ: Mapping[str, str]) -> MemberEnvironment:
    """Where the environment says that this process joins. SyncError where it does not say all of it."""
    control = _of(environ, CONTROLLER)
    if not control:
        raise SyncError(
            f"{CONTROLLER} is not set: write {CONTROLLER}=tcp:HOST:PORT into the environment", field=CONTROLLER
        )
    name = _of(environ, MEMBER) or _worker(environ)
    if not name:
        raise SyncError(
            f"{CONTROLLER}={control} names a controller, and nothing says which of its members this process is: "
            f"set {MEMBER}",
            field=MEMBER,
        )
    try:
        check_name(name)
    except ProtocolError as error:
        raise SyncError(f"{MEMBER}={name}: {error}", field=MEMBER, given=name) from error
    host = control.removeprefix("tcp:").rpartition(":")[0] if control.startswith("tcp:") else ""
    token, tls = _of(environ, TOKEN_FILE), _of(environ, TLS)
    listen = _of(environ, LISTEN) or address_towards(host)
    return MemberEnvironment(control, name, listen, _read(token) if token else "", Path(tls) if tls else None)


def address_towards(host: str) -> str:
    """The address of the interface that leads to a host, where peers find this machine; none where there is no host to
    ask for. Nothing is sent."""
    if not host:
        return ""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((host.strip("[]"), 9))
        except OSError as error:
            raise SyncError(f"no way leads to {host}: {error}") from error
        return str(probe.getsockname()[0])


def _worker(environ: Mapping[str, str]) -> str | None:
    """The name of a process on a worker: the worker's, with the number of the process where there are several."""
    worker = environ.get(WORKER)
    several = environ.get("LOCAL_WORLD_SIZE", "1") != "1"
    return f"{worker}.{environ.get('LOCAL_RANK', '0')}" if worker and several else worker


def _of(environ: Mapping[str, str], variable: str) -> str:
    """A variable with those that it names put in; empty where it is not set."""
    value = environ.get(variable, "")
    try:
        return value.format_map(environ)
    except (KeyError, ValueError, IndexError, AttributeError) as error:
        raise SyncError(
            f"{variable}={value}: {error} can't be put in; write names of variables that are set between braces",
            field=variable,
            given=value,
        ) from error


def _read(file: str) -> str:
    try:
        return Path(file).read_text().strip()
    except OSError as error:
        raise SyncError(
            f"{TOKEN_FILE}={file}: {error.strerror}; write the file with this member's token",
            field=TOKEN_FILE,
            file=file,
        ) from error
