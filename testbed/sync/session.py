"""A member's session: joined to a controller, it reduces tensors with the others and reports how that went."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, fields
from types import TracebackType
from typing import Any

import torch

from testbed.plan import Plan, PlanError
from testbed.protocol import Goodbye, Held, Hello, Job, Message, Prepare, ProtocolError, Report, Stop, Welcome
from testbed.sync.buffers import CODES, Staging
from testbed.sync.control import Channel
from testbed.sync.errors import Stopped, SyncError
from testbed.sync.exchange import Exchange, Round
from testbed.sync.listener import CLOSE_S, Listener
from testbed.sync.sockets import listen as open_listener

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RoundResult:
    """What `allreduce` did: `tensor` holds the mean. Times in seconds since 1970."""

    tensor: torch.Tensor
    round: int
    epoch: int
    started_s: float
    finished_s: float
    lost: int
    duplicated: int


class Session:
    """One member among `members`, made by `join`. A context manager; leaving it says goodbye."""

    def __init__(self, name: str, channel: Channel, welcome: Welcome, exchange: Exchange, listener: Listener) -> None:
        self.name = name
        self.job = _job(welcome)
        self.members = exchange.members
        self._channel = channel
        self._exchange = exchange
        self._listener = listener
        self._staging = Staging()
        self._last: tuple[Round, RoundResult, float] | None = None
        self._finished = False
        self._holding: list[threading.Thread] = []
        self._control = threading.Thread(target=self._obey, name="control", daemon=True)
        self._control.start()

    def allreduce(self, tensor: torch.Tensor, weight: float = 1.0) -> RoundResult:
        """Replace a contiguous tensor, in place, by the members' mean, weighted by their `weight`s.

        All members must call it equally often, with tensors of one shape and type (float32 or float64). Afterwards
        all hold the same bits. SyncError names the peers waited for, the epoch and the round; Stopped when the
        controller asked to leave. The session is of no further use after either.
        """
        if tensor.dtype not in CODES or not tensor.is_contiguous() or not tensor.numel():
            raise ValueError(f"allreduce takes contiguous, non-empty tensors of {[str(d) for d in CODES]}")
        if not 0 <= weight < float("inf"):
            raise ValueError(f"weight {weight} is not a finite number of at least 0")
        flat = tensor.detach().view(-1)
        started, began = time.time(), time.monotonic()
        values = self._staging.fetch(flat) if flat.is_cuda else flat
        done = self._exchange.run(values, weight, self.job.round_timeout_s)
        if values is not flat:
            flat.copy_(values)
        result = RoundResult(
            tensor=tensor,
            round=done.number,
            epoch=done.epoch,
            started_s=started,
            finished_s=started + time.monotonic() - began,
            lost=done.reduction.lost.bit_count(),
            duplicated=done.reduction.duplicated.bit_count(),
        )
        self._last = done, result, began
        return result

    def report(
        self,
        metrics: Mapping[str, float] | None = None,
        compute_s: float = 0.0,
        paced_s: float = 0.0,
        late_s: float = 0.0,
    ) -> None:
        """Tell the controller about the last round and the step before it."""
        if self._last is None:
            raise SyncError("there is no round to report yet")
        done, result, began = self._last
        arrived = dict(done.tally.arrived)
        self._tell(
            Report(
                member=self.name,
                round=result.round,
                epoch=result.epoch,
                started_s=result.started_s,
                finished_s=result.finished_s,
                compute_s=compute_s,
                paced_s=paced_s,
                late_s=late_s,
                sent_bytes=done.tally.sent_bytes,
                received_bytes=done.tally.received_bytes,
                lost=result.lost,
                duplicated=result.duplicated,
                waited={peer: max(at - began, 0.0) for peer, at in arrived.items()},
                peers=self._exchange.samples(),
                metrics=metrics or {},
            )
        )

    def finish(self, digest: str, metrics: Mapping[str, float] | None = None) -> None:
        """Say goodbye with the SHA-256 of the parameters, once the peers have read all that was sent to them."""
        self._exchange.drain(self.job.round_timeout_s)
        self._goodbye(Goodbye(self.name, self._rounds(), digest, metrics or {}))

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Leave. An error on the way out, or no `finish`, is told to the controller."""
        if not self._finished:
            reason = f"{kind.__name__}: {error}" if kind else "left without finishing"
            self._goodbye(Goodbye(self.name, self._rounds(), error=reason))
        self._exchange.close()
        self._listener.close()
        self._channel.close()
        for thread in (self._control, *self._holding):
            thread.join(CLOSE_S)

    def _rounds(self) -> int:
        return self._last[1].round if self._last else 0

    def _goodbye(self, message: Goodbye) -> None:
        self._finished = True
        self._tell(message)

    def _tell(self, message: Message) -> None:
        """Send what the controller should know. Training does not need the controller, so it goes on without."""
        try:
            self._channel.send(message)
        except OSError as error:
            log.warning("%s: the controller did not get a %s: %s", self.name, message.kind, error)

    def _obey(self) -> None:
        """The control thread: does what the controller asks until the channel closes."""
        with suppress(OSError, ValueError):  # closed under us: the session is being left
            while (message := self._next_message()) is not None:
                if isinstance(message, Stop):
                    self._exchange.fail(Stopped(message.reason))
                elif isinstance(message, Prepare):
                    self._prepare(message)

    def _next_message(self) -> Message | None:
        while True:
            try:
                return self._channel.receive()
            except ProtocolError as error:
                log.warning("%s: ignored what the controller said: %s", self.name, error)

    def _prepare(self, message: Prepare) -> None:
        """Keep the plan at once, so that epochs are kept in their order; connect without holding up the channel."""
        try:
            plan = Plan.from_json(message.plan)
            self._exchange.keep(plan)
        except PlanError as error:
            self._refuse(message.plan.get("epoch"), error)
            return
        thread = threading.Thread(target=self._hold, args=(plan,), name=f"hold {plan.epoch}", daemon=True)
        self._holding = [holding for holding in self._holding if holding.is_alive()] + [thread]
        thread.start()

    def _hold(self, plan: Plan) -> None:
        try:
            self._exchange.reach(plan)
        except SyncError as error:
            self._refuse(plan.epoch, error)
        else:
            self._tell(Held(self.name, plan.epoch))

    def _refuse(self, epoch: Any, error: Exception) -> None:
        log.warning("%s: can't hold the plan of epoch %s: %s", self.name, epoch, error)
        if isinstance(epoch, int):
            self._tell(Held(self.name, epoch, str(error)))


def join(
    control: str, name: str, listen: str = "", device: str = "cpu", patience_s: float = 120.0, token: str = ""
) -> Session:
    """Join the run of the controller at `control` (`unix:/path`) as the member `name`.

    Listens for peers on the IPv4 address `listen`, or on the first one that an interface other than the loopback
    gets; either may appear only while this waits. `token` is the run's, for which the controller lets members in.
    Returns when all members are there. SyncError when the address, the controller or the others are not there within
    `patience_s` seconds each.
    """
    accepting = open_listener(listen, patience_s)
    channel = Channel(control, patience_s)
    channel.send(Hello(name, accepting.getsockname(), device, token))
    welcome = channel.await_welcome(patience_s)
    plan = Plan.from_json(welcome.plan)
    if missing := set(plan.members) - set(welcome.roster):
        raise SyncError(f"nobody said where {sorted(missing)} listen")
    exchange = Exchange(name, plan, welcome.roster, welcome.secret, _job(welcome).round_timeout_s)
    listener = Listener(accepting, plan.members, welcome.secret, exchange)
    return Session(name, channel, welcome, exchange, listener)


def _job(welcome: Welcome) -> Job:
    known = {field.name for field in fields(Job)}
    if unknown := sorted(set(welcome.job) - known):
        raise ProtocolError(f"the job has unknown fields {unknown}")
    return Job(**welcome.job)
