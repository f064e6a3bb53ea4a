"""How the ranks of a process group meet: at the controller that the environment names, or at one of their own."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import replace

from msgspec import structs
from torch.distributed.distributed_c10d import PrefixStore, Store

from testbed.sync.c10d.own_controller import OwnController
from testbed.sync.environment import CONTROLLER, MemberEnvironment, address_towards, member_of
from testbed.sync.errors import SyncError
from testbed.sync.rendezvous import rendezvous
from testbed.sync.session import Session, session_of
from testbed.tls import Tls

#: Where rank 0 tells the others of the controller that it has started.
KEY = "controller"

log = logging.getLogger(__name__)


class GroupRendezvous:
    """Of rank `rank` of `size`, by way of their store. `among_all` says whether they are all there are.

    The environment's controller is for all ranks together: the sums of other groups go by gloo under it. Without one,
    rank 0 of each group starts a controller beside it.
    """

    def __init__(self, store: Store, rank: int, size: int, among_all: bool, controller: Sequence[str]) -> None:
        self._store = PrefixStore("wan/", store)
        self._rank = rank
        self._size = size
        self._controller = controller
        self._place = member_of(os.environ) if os.environ.get(CONTROLLER) else None
        self._own: OwnController | None = None
        self.planned = among_all or self._place is None
        if not self.planned and size > 1:
            log.warning("wan: a group of %d ranks goes by gloo: the controller's plans are for all ranks", size)

    def join(self, timeout_s: float, on_failure: Callable[[SyncError], None]) -> Session:
        """The session of this rank, once all are there; that and rounds fail after `timeout_s`. What ends rounds is
        told to `on_failure`. SyncError."""
        place = self._place or self._own_place(timeout_s)
        tls = None if place.tls is None else Tls(place.tls)
        # Ranks may come to their first sum far apart, and gloo would wait as long.
        met = rendezvous(place.control, place.name, place.listen, "cpu", timeout_s, place.token, tls)
        job = structs.replace(met.job, round_timeout_s=timeout_s)
        session = session_of(replace(met, welcome=structs.replace(met.welcome, job=job)), on_failure=on_failure)
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

    def _own_place(self, timeout_s: float) -> MemberEnvironment:
        """The place at a controller that rank 0 starts, on the machine that it is on."""
        names = [f"rank{rank}" for rank in range(self._size)]
        address = address_towards(os.environ.get("MASTER_ADDR", ""))
        if self._rank == 0:
            try:
                self._own = OwnController(self._controller, names, address, timeout_s)
                told = {"address": self._own.address, "tokens": self._own.tokens}
            except SyncError as error:
                told = {"error": str(error)}
            self._store.set(KEY, json.dumps(told))
        told = json.loads(self._store.get(KEY))
        if "error" in told:
            raise SyncError(told["error"])
        name = names[self._rank]
        return MemberEnvironment(told["address"], name, address, told["tokens"][name])
