"""Handles the controller's messages to a member that reduces: plans, lost members and probes."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from functools import partial

from testbed.plan import Plan, PlanError
from testbed.protocol import Abort, Confirm, ControlMessage, Held, Prepare, Probe, Reconfigure
from testbed.schema import brief
from testbed.sync.allreduce import AllReduceEngine, ElasticGroup
from testbed.sync.control_connection import ControlConnection
from testbed.sync.errors import SyncError
from testbed.sync.executor import start
from testbed.sync.rendezvous import keys_of
from testbed.sync.transport import CLOSE_S

log = logging.getLogger(__name__)


class EngineControl:
    """Handles the controller's messages for one member's engine. Adds the keys of members that join later to `keys`."""

    def __init__(
        self, member: str, connection: ControlConnection, engine: AllReduceEngine, keys: dict[str, bytes]
    ) -> None:
        self._member = member
        self._connection = connection
        self._engine = engine
        self._keys = keys
        self._beside: list[threading.Thread] = []

    def close(self) -> None:
        """Wait for the threads to end, after the engine was closed."""
        for thread in self._beside:
            thread.join(CLOSE_S)

    def handle(self, message: ControlMessage) -> None:
        """Handle a message other than Stop. What takes long is done on other threads."""
        engine = self._engine
        match message:
            case Prepare():
                self._prepare(message)
            case Confirm(epoch):
                if (commit := engine.current.swaps.confirm(epoch)) is not None:
                    self._run_beside(f"commit {epoch}", commit)
            case Probe() if message.peer in engine.current.members and message.peer != self._member:
                engine.current.outbox.probe(message)
            case Abort() if isinstance(engine, ElasticGroup):
                engine.abort(message)
            case Reconfigure() if isinstance(engine, ElasticGroup):
                try:
                    engine.reconfigure(message)
                except (PlanError, SyncError) as error:
                    engine.fail(SyncError(f"the controller's plan for the members that are left is invalid: {error}"))

    def _prepare(self, message: Prepare) -> None:
        """Keep the plan at once, so that plans are kept in the order of their epochs; connect on another thread."""
        self._keys |= keys_of(message)
        try:
            plan = Plan.from_json(message.plan)
            hold = self._engine.prepare(plan, message.roster, message.source)
        except PlanError as error:
            epoch = message.plan.get("epoch")
            if not isinstance(epoch, int):
                raise SyncError(f"the controller sent a malformed plan without an epoch: {error}") from error
            self._refuse(epoch, error)
            return
        self._run_beside(f"hold {plan.epoch}", partial(self._hold, plan.epoch, hold))

    def _run_beside(self, name: str, work: Callable[[], None]) -> None:
        """Run work that waits for other members on a thread of its own, so that it does not delay messages."""
        thread = threading.Thread(target=work, name=name, daemon=True)
        start(thread)
        self._beside = [other for other in self._beside if other.is_alive()] + [thread]

    def _hold(self, epoch: int, hold: Callable[[], None]) -> None:
        try:
            hold()
        except (PlanError, SyncError) as error:
            self._refuse(epoch, error)
        else:
            self._connection.tell(Held(self._member, epoch))

    def _refuse(self, epoch: int, error: Exception) -> None:
        log.warning("%s: can't hold the plan of epoch %s: %s", self._member, epoch, error)
        self._connection.tell(Held(self._member, epoch, brief(str(error))))
