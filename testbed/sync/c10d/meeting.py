"""How the ranks of a process group meet: at the controller that the environment names, or at one of their own."""

from __future__ import annotations

import json
import logging
import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from msgspec import structs
from torch.distributed.distributed_c10d import PrefixStore, Store

from testbed.schema import ProtocolError, check_name
from testbed.sync.c10d.own_controller import OwnController
from testbed.sync.errors import SyncError
from testbed.sync.rendezvous import rendezvous
from testbed.sync.session import Session, session_of
from testbed.tls import Tls

#: The controller's address, as `sync.join` takes it.
CONTROLLER = "TESTBED_CONTROLLER"
#: This process's name there. A worker's own is also WORKER, where there is one process on each.
MEMBER, WORKER = "TESTBED_MEMBER", "TESTBED_WORKER"
#: What it shows there: the file with its token, or the folder with its certificate.
TOKEN_FILE, TLS = "TESTBED_TOKEN_FILE", "TESTBED_TLS"

#: The ranks come to their first sum within moments of each other; who starts a controller takes some seconds for it.
PATIENCE_S = 120.0

#: Where rank 0 tells the others of the controller that it has started.
KEY = "controller"

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Place:
    """Where a process joins, as whom, and what it shows; peers find it at the IPv4 address `listen`."""

    control: str
    name: str
    listen: str = ""
    token: str = ""
    tls: Path | None = None


class Meeting:
    """Of rank `rank` of `size`, by way of their store. `among_all` says whether they are all there are.

    The environment's controller is for all ranks together: the sums of other groups go by gloo under it. Without one,
    rank 0 of each group starts a controller beside it.
    """

    def __init__(self, store: Store, rank: int, size: int, among_all: bool) -> None:
        self._store = PrefixStore("wan/", store)
        self._rank = rank
        self._size = size
        self._place = place_of(os.environ) if os.environ.get(CONTROLLER) else None
        self._own: OwnController | None = None
        self.planned = among_all or self._place is None
        if not self.planned and size > 1:
            log.warning("wan: a group of %d ranks goes by gloo: the controller's plans are for all ranks", size)

    def join(self, timeout_s: float) -> Session:
        """The session of this rank, once all are there; rounds fail after `timeout_s`. SyncError."""
        place = self._place or self._own_place(timeout_s)
        tls = None if place.tls is None else Tls(place.tls)
        patience_s = min(PATIENCE_S, timeout_s)
        met = rendezvous(place.control, place.name, place.listen, "cpu", patience_s, place.token, tls)
        job = structs.replace(met.job, round_timeout_s=timeout_s)
        session = session_of(replace(met, welcome=structs.replace(met.welcome, job=job)))
        if (count := len(session.members)) != self._size:
            session.__exit__(SyncError, SyncError("the process group has other ranks"), None)
            raise SyncError(
                f"the controller at {place.control} has {count} members, and the process group {self._size} ranks; "
                "start it with a member for each rank"
            )
        log.info("wan: %s joined %d ranks at %s", place.name, count, place.control)
        return session

    def close(self) -> None:
        """End the controller, if it is of our own, once all members have left it."""
        if self._own is not None:
            self._own.close()
            self._own = None

    def _own_place(self, timeout_s: float) -> Place:
        """The place at a controller that rank 0 starts, on the machine that it is on."""
        names = [f"rank{rank}" for rank in range(self._size)]
        address = _address_towards(os.environ.get("MASTER_ADDR", ""))
        if self._rank == 0:
            try:
                self._own = OwnController(names, address, timeout_s)
                told = {"address": self._own.address, "tokens": self._own.tokens}
            except SyncError as error:
                told = {"error": str(error)}
            self._store.set(KEY, json.dumps(told))
        told = json.loads(self._store.get(KEY))
        if "error" in told:
            raise SyncError(told["error"])
        name = names[self._rank]
        return Place(told["address"], name, address, told["tokens"][name])


def place_of(environment: Mapping[str, str]) -> Place:
    """Where the environment says that this process joins. SyncError where it does not say all of it."""
    control = environment[CONTROLLER]
    name = environment.get(MEMBER) or _worker(environment)
    if name is None:
        raise SyncError(
            f"{CONTROLLER}={control} names a controller, and nothing says which of its members this process is: "
            f"set {MEMBER}"
        )
    try:
        check_name(name)
    except ProtocolError as error:
        raise SyncError(f"{MEMBER}={name}: {error}") from error
    token, tls = environment.get(TOKEN_FILE), environment.get(TLS)
    host = control.removeprefix("tcp:").rpartition(":")[0] if control.startswith("tcp:") else ""
    return Place(control, name, _address_towards(host), _read(token) if token else "", Path(tls) if tls else None)


def _worker(environment: Mapping[str, str]) -> str | None:
    """The name of a process on a worker: the worker's, with the number of the process where there are several."""
    worker = environment.get(WORKER)
    several = environment.get("LOCAL_WORLD_SIZE", "1") != "1"
    return f"{worker}.{environment.get('LOCAL_RANK', '0')}" if worker and several else worker


def _read(file: str) -> str:
    try:
        return Path(file).read_text().strip()
    except OSError as error:
        raise SyncError(f"{TOKEN_FILE}={file}: {error.strerror}; write the file with this member's token") from error


def _address_towards(host: str) -> str:
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
