"""The rendezvous of a process group's ranks at a controller: the environment names it, or rank 0 starts one."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import replace

from msgspec import structs
from torch.distributed.distributed_c10d import PrefixStore, Store

from testbed.sockets import Tls
from testbed.sync.c10d.own_controller import OwnController
from testbed.sync.environment import CONTROLLER, MemberEnvironment, address_towards, member_of
from testbed.sync.errors import SyncError
from testbed.sync.rendezvous import rendezvous
from testbed.sync.session import Session, session_of

#: The key in the store under which rank 0 publishes the controller that it has started.
KEY = "controller"

log = logging.getLogger(__name__)


class GroupRendezvous:
    """Joins one rank to the other ranks of its group.

    The environment's controller serves the group of all ranks; the sums of smaller groups then go over gloo. If the
    environment names no controller, rank 0 of each group starts one beside it.

    Args:
        store: The group's store.
        rank: This process's rank in the group.
        size: The number of ranks in the group.
        among_all: True if the group has all ranks.
        controller: The command that starts a controller.

    Attributes:
        planned: True if the group's large sums use a session.
    """

    def __init__(self, store: Store, rank: int, size: int, among_all: bool, controller: Sequence[str]) -> None:
        self._store = PrefixStore("wan/", store)
        self._rank = rank
        self._size = size
        self._controller = controller
        self._environment = member_of(os.environ) if os.environ.get(CONTROLLER) else None
        self._own: OwnController | None = None
        self.planned = among_all or self._environment is None
        if not self.planned and size > 1:
            log.warning("wan: a group of %d ranks uses gloo: the controller's plans are for all ranks", size)

    def join(self, timeout_s: float, on_failure: Callable[[SyncError], None]) -> Session:
        """Join the other ranks, and return this rank's session.

        Args:
            timeout_s: The longest wait in seconds for the other ranks, and in each round.
            on_failure: Called, on any thread, with the error that ends all rounds.

        Raises:
            SyncError: A rank or the controller did not come in time, or the controller has other members.
        """
        member = self._environment or self._own_environment(timeout_s)
        tls = None if member.tls is None else Tls(member.tls)
        # Ranks may come to their first sum far apart; gloo would wait for `timeout_s` as well.
        joined = rendezvous(member.control, member.name, member.listen, "cpu", timeout_s, member.token, tls)
        job = structs.replace(joined.job, round_timeout_s=timeout_s)
        session = session_of(replace(joined, welcome=structs.replace(joined.welcome, job=job)), on_failure=on_failure)
        if (count := len(session.members)) != self._size:
            session.__exit__(SyncError, SyncError("the process group has other ranks"), None)
            raise SyncError(
                f"the controller at {member.control} has {count} members, and the process group {self._size} ranks; "
                "start it with a member for each rank"
            )
        log.info("wan: %s joined %d ranks at %s", member.name, count, member.control)
        return session

    def close(self) -> None:
        """End the controller that this rank has started, if any, after all members have left it."""
        if self._own is not None:
            self._own.close()
            self._own = None

    def _own_environment(self, timeout_s: float) -> MemberEnvironment:
        """Return the environment for the controller that rank 0 starts on its machine; rank 0 starts it."""
        names = [f"rank{rank}" for rank in range(self._size)]
        address = address_towards(os.environ.get("MASTER_ADDR", ""))
        if self._rank == 0:
            try:
                self._own = OwnController(self._controller, names, address, timeout_s)
                published = {"address": self._own.address, "tokens": self._own.tokens}
            except SyncError as error:
                published = {"error": str(error)}
            self._store.set(KEY, json.dumps(published))
        published = json.loads(self._store.get(KEY))
        if "error" in published:
            raise SyncError(published["error"])
        name = names[self._rank]
        return MemberEnvironment(published["address"], name, address, published["tokens"][name])
