"""A member's session: joined to a controller, it reduces tensors with the others and reports how that went."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import TYPE_CHECKING, Any

import torch

from testbed.plan import Plan, PlanError
from testbed.protocol import (
    Arrived,
    Confirm,
    Goodbye,
    Halt,
    Held,
    Message,
    Prepare,
    Probe,
    ProtocolError,
    Report,
    Resume,
    Slice,
    Stop,
)
from testbed.sync import checkpoint
from testbed.sync.allreduce import state as catchup
from testbed.sync.allreduce.elastic import Begun, Eras
from testbed.sync.allreduce.round import Tally
from testbed.sync.buffers import CODES, Staging
from testbed.sync.checkpoint import Stateful
from testbed.sync.codecs import Residual
from testbed.sync.errors import Stopped, SyncError
from testbed.sync.executor import Later, Work
from testbed.sync.line import Line
from testbed.sync.meanwhile import Meanwhile
from testbed.sync.rendezvous import Meeting, meet
from testbed.sync.strategies.offer import Offers
from testbed.sync.transport.listener import CLOSE_S, Listener
from testbed.sync.transport.sender import Way

if TYPE_CHECKING:
    from testbed.sync.ddp import Hook

NOTHING: Mapping[str, float] = MappingProxyType({})

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RoundResult:
    """What `allreduce` did: `tensor` holds the mean. Times in seconds since 1970.

    `whole` says that the mean is all members'; a plan with groups has rounds in which each group has its own.
    `slices` say whose updates the mean is of: one, unless a member was lost in the middle of the round.
    """

    tensor: torch.Tensor
    round: int
    epoch: int
    whole: bool
    started_s: float
    finished_s: float
    lost: int
    duplicated: int
    slices: tuple[Slice, ...]


@dataclass(frozen=True, slots=True)
class _Begun:
    """A round that is on. `values` are the tensor, flat, or a copy of it on the host; `began` is in monotonic time."""

    round: Begun
    tensor: torch.Tensor
    values: torch.Tensor
    started_s: float
    began: float
    sending_s: float


@dataclass(frozen=True, slots=True)
class _Done:
    """A round that the controller has not been told of. `waited` and `send_s`: see Report."""

    result: RoundResult
    tally: Tally
    waited: Mapping[str, float]
    send_s: float


class Session(Offers):
    """One member among `members`, made by `join`. A context manager; leaving it says goodbye.

    For one caller at a time.

    In an elastic run members may be lost, and come, while others train. A member that comes calls `share` before its
    first round, and gets the state of another there.
    """

    def __init__(
        self,
        meeting: Meeting,
        line: Line,
        eras: Eras,
        listener: Listener,
    ) -> None:
        self.name = meeting.name
        self.job = meeting.job
        self._line = line
        self._eras = eras
        self._listener = listener
        self._staging = Staging()
        self._elastic = meeting.welcome.lease_s > 0
        self._source = meeting.welcome.source
        self._shared: dict[str, Stateful] = {}
        self._released = threading.Event()
        self._later = Later(f"{self.name}: rounds")
        self._untold: list[_Done] = []
        self._telling = threading.Lock()
        self._finished = False
        self._holding: list[threading.Thread] = []
        self._meanwhile = Meanwhile(self.name, self._tell_arrivals)
        self._control = threading.Thread(target=self._obey, name="control", daemon=True)
        self._control.start()

    @property
    def members(self) -> tuple[str, ...]:
        """Those who take part now."""
        return self._eras.members

    @property
    def rounds(self) -> int:
        """The last round that is over."""
        return self._eras.finished

    def share(self, **parts: Stateful) -> int:
        """Name what a member that comes later begins from, say `model=model, optimizer=optimizer, strategy=strategy`.

        Who comes later itself gets the state of another member, put into its own parts, and goes on with the round
        that follows the one that this returns: the last one that is over. SyncError when it can't be had.

        Strategies hand the state over after a step. Who reduces without one says `step_done` when it has used a round.
        """
        self._shared = parts
        if self._source:
            answer = self._eras.ask_state(self._source, catchup.MOST_BYTES)
            self._source = ""
            self._eras.start(catchup.unpack(answer, parts))
        return self.rounds

    def step_done(self) -> None:
        """The last round has been used: members that are between two steps now hold the same."""
        if self._eras.wanted is not None:
            self._eras.offer(catchup.packed(self.rounds, self._shared))

    def allreduce(self, tensor: torch.Tensor, weight: float = 1.0, residual: Residual | None = None) -> RoundResult:
        """Replace a contiguous tensor, in place, by the members' mean, weighted by their `weight`s.

        All members must call it equally often, with tensors of one shape and type. Afterwards all hold the same
        bits. What travels is of the tensor's own type: float16 and bfloat16 are summed in float32 at each member and
        rounded once for each hop (relative 2^-11 and 2^-8). SyncError names the peers waited for, the epoch and the
        round; Stopped when the controller asked to leave. The session is of no further use after either.

        The mean is exact to rounding. With a `residual`, kept by the caller from one round of this tensor (float32)
        to the next, chunks go through the codecs that the plan names, and `residual` keeps what those left out.
        """
        _check(tensor, weight, residual)
        if self._later.busy:
            return self.allreduce_later(tensor, weight, residual).wait()
        return self._end(self._start(tensor, weight, residual))

    def allreduce_later(
        self, tensor: torch.Tensor, weight: float = 1.0, residual: Residual | None = None
    ) -> Work[RoundResult]:
        """Begin an `allreduce` and go on; the tensor may be used again once the work was waited for.

        Rounds are done in the order in which they were asked for, at every member the same. One begins when the first
        means of the one before are there (if there was a tensor of its shape before), so that two are on at a time,
        unless the run is elastic: there a member that is lost would leave two to be mended.
        """
        _check(tensor, weight, residual)
        return self._later.begin(lambda: self._start(tensor, weight, residual, later=True), self._end)

    @cached_property
    def ddp_hook(self) -> Hook:
        """For DistributedDataParallel: `ddp_model.register_comm_hook(session, session.ddp_hook)`."""
        from testbed.sync.ddp import hook_of

        return hook_of(self)

    def _start(self, tensor: torch.Tensor, weight: float, residual: Residual | None, later: bool = False) -> _Begun:
        self._tell_rounds(keep=1 if later else 0)  # the caller may have taken its result in just now, to report it next
        flat = tensor.detach().view(-1)
        started, began, sending_s = time.time(), time.monotonic(), self._eras.sending_s()
        if self._source:
            raise SyncError(f"{self.name} came while others train: call share() before its first round")
        values = self._staging.fetch(flat) if flat.is_cuda else flat
        self._meanwhile.begins()
        with self._failing():
            current = self._eras.begin(values, weight, residual, overlaps=later)
        return _Begun(current, tensor, values, started, began, sending_s)

    def _end(self, begun: _Begun) -> RoundResult:
        with self._failing():
            done = self._eras.end(begun.round)
        self._meanwhile.ends()
        if begun.values.device != begun.tensor.device:
            begun.tensor.detach().view(-1).copy_(begun.values)
            self._staging.put_back(begun.values)
        result = RoundResult(
            tensor=begun.tensor,
            round=done.number,
            epoch=done.epoch,
            whole=done.among_all,
            started_s=begun.started_s,
            finished_s=begun.started_s + time.monotonic() - begun.began,
            lost=done.lost,
            duplicated=done.duplicated,
            slices=done.slices,
        )
        waited = {peer: max(at - begun.began, 0.0) for peer, at in dict(done.tally.arrived).items()}
        with self._telling:
            self._untold.append(_Done(result, done.tally, waited, self._eras.sending_s() - begun.sending_s))
        return result

    @contextmanager
    def _failing(self) -> Iterator[None]:
        """An error in a round is the session's: rounds that were asked for already must not wait once more."""
        try:
            yield
        except SyncError as error:
            self._eras.fail(error)
            raise

    @property
    def plan(self) -> Plan:
        """The plan that the next round goes by."""
        return self._eras.plan

    def save(self, path: Path, **parts: Stateful) -> None:
        """Write a checkpoint of what is given, say `model=model, optimizer=optimizer, strategy=strategy`.

        Between two steps; `sync.load` reads it. With a strategy, all members save after the same step.
        """
        checkpoint.save(path, self.rounds, self.plan, **parts)

    def report(
        self,
        metrics: Mapping[str, float] | None = None,
        compute_s: float = 0.0,
        paced_s: float = 0.0,
        late_s: float = 0.0,
    ) -> bool:
        """Tell the controller about the last round and the steps before it; False when there is none to tell of.

        Rounds that nobody reports are told of without metrics and times, when the next one begins (after
        `allreduce_later`, the one after that).
        """
        return self._tell_rounds(metrics or {}, compute_s, paced_s, late_s)

    def _tell_rounds(
        self,
        metrics: Mapping[str, float] = NOTHING,
        compute_s: float = 0.0,
        paced_s: float = 0.0,
        late_s: float = 0.0,
        keep: int = 0,
    ) -> bool:
        """Tell of all but the newest `keep` rounds that are over."""
        with self._telling:
            count = max(0, len(self._untold) - keep)
            untold, self._untold = self._untold[:count], self._untold[count:]
        for done in untold:
            last = done is untold[-1]
            self._tell(
                Report(
                    member=self.name,
                    round=done.result.round,
                    epoch=done.result.epoch,
                    started_s=done.result.started_s,
                    finished_s=done.result.finished_s,
                    compute_s=compute_s if last else 0.0,
                    paced_s=paced_s if last else 0.0,
                    late_s=late_s if last else 0.0,
                    sent_bytes=done.tally.sent_bytes,
                    received_bytes=done.tally.received_bytes,
                    send_s=done.send_s,
                    receive_s=done.tally.receive_s,
                    add_s=done.tally.add_s,
                    lost=done.result.lost,
                    duplicated=done.result.duplicated,
                    waited=done.waited,
                    peers=self._eras.samples() if last else (),
                    arrivals=self._listener.arrivals() if last else {},
                    metrics=dict(metrics) if last else {},
                    slices=done.result.slices if len(done.result.slices) > 1 else (),
                )
            )
        return bool(untold)

    def _tell_arrivals(self) -> None:
        """Tell what came in so far. A controller that is gone has no use for it, and that is told elsewhere."""
        with suppress(OSError):
            self._line.send(Arrived(self.name, self._listener.arrivals()))

    def finish(self, digest: str = "", metrics: Mapping[str, float] | None = None) -> None:
        """Say goodbye, with the SHA-256 of the parameters if the controller is to compare them, once the peers have
        read all that was sent to them. Leaving the session without an error does so too."""
        self._later.close()
        self._tell_rounds()
        goodbye = Goodbye(self.name, self.rounds, digest, metrics or {})
        if self._elastic:
            self._goodbye(goodbye)
            self._released.wait(self.job.round_timeout_s)  # a member that was lost may have left others short of means
            self._eras.drain()
        else:
            self._eras.drain()
            self._goodbye(goodbye)

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Leave: `finish`, unless that was done. An error on the way out is told to the controller."""
        if not self._finished and kind is None:
            self.finish()
        elif not self._finished:
            self._goodbye(Goodbye(self.name, self.rounds, error=f"{kind.__name__ if kind else ''}: {error}"))
        self._released.set()
        self._meanwhile.close()
        self._eras.close()
        self._later.close()
        self._listener.close()
        self._line.close()
        for thread in (self._control, *self._holding):
            thread.join(CLOSE_S)

    def _goodbye(self, message: Goodbye) -> None:
        self._finished = True
        self._tell(message)

    def _tell(self, message: Message) -> None:
        """Send what the controller should know. Training does not need the controller, so it goes on without."""
        try:
            self._line.send(message)
        except OSError as error:
            log.warning("%s: the controller did not get a %s: %s", self.name, message.kind, error)

    def _obey(self) -> None:
        """The control thread: does what the controller asks until the channel closes."""
        with suppress(OSError, ValueError):  # closed under us: the session is being left
            while (message := self._next_message()) is not None:
                match message:
                    case Stop() if self._finished:
                        self._released.set()
                    case Stop():
                        self._eras.fail(Stopped(message.reason, message.again))
                    case Prepare():
                        self._prepare(message)
                    case Confirm():
                        self._eras.confirm(message.epoch)
                    case Probe():
                        self._eras.probe(message.peer, message.bytes, message.seconds)
                    case Halt():
                        self._eras.halt(message)
                    case Resume():
                        self._resume(message)
        if self._finished:
            self._released.set()

    def _next_message(self) -> Message | None:
        while True:
            try:
                return self._line.receive()
            except ProtocolError as error:
                log.warning("%s: ignored what the controller said: %s", self.name, error)

    def _prepare(self, message: Prepare) -> None:
        """Keep the plan at once, so that epochs are kept in their order; connect without holding up the channel."""
        try:
            plan = Plan.from_json(message.plan)
            if plan.members == self.members or not message.roster:
                self._eras.keep(plan)
        except PlanError as error:
            self._refuse(message.plan.get("epoch"), error)
            return
        hold = (plan, message.roster, message.source)
        thread = threading.Thread(target=self._hold, args=hold, name=f"hold {plan.epoch}", daemon=True)
        self._holding = [holding for holding in self._holding if holding.is_alive()] + [thread]
        thread.start()

    def _resume(self, message: Resume) -> None:
        try:
            self._eras.resume(message)
        except (PlanError, SyncError) as error:
            self._eras.fail(SyncError(f"the controller's plan for those who are left: {error}"))

    def _hold(self, plan: Plan, roster: Mapping[str, tuple[str, int]], source: str) -> None:
        try:
            if plan.members == self.members:
                self._eras.reach(plan)
            else:
                self._eras.prepare(plan, roster, source)
        except (PlanError, SyncError) as error:
            self._refuse(plan.epoch, error)
        else:
            self._tell(Held(self.name, plan.epoch))

    def _refuse(self, epoch: Any, error: Exception) -> None:
        log.warning("%s: can't hold the plan of epoch %s: %s", self.name, epoch, error)
        if isinstance(epoch, int):
            self._tell(Held(self.name, epoch, str(error)))


def join(
    control: str,
    name: str,
    listen: str = "",
    device: str = "cpu",
    patience_s: float = 120.0,
    token: str = "",
    after_round: int = 0,
) -> Session:
    """Join the run of the controller at `control` (`unix:/path` or `tcp:host:port`) as the member `name`.

    Listens for peers on the IPv4 address `listen`, or on the first one that an interface other than the loopback
    gets; either may appear only while this waits. `token` is the run's, for which the controller lets members in.
    Members that restored checkpoints of one round go on `after_round`; all say the same.

    Returns when all members are there. SyncError when the address, the controller or the others are not there within
    `patience_s` seconds each.
    """
    return session_of(meet(control, name, listen, device, patience_s, token), after_round)


def session_of(meeting: Meeting, after_round: int = 0) -> Session:
    """The session of a member that has met the others."""
    welcome, work, name = meeting.welcome, meeting.job, meeting.name
    plan = Plan.from_json(welcome.plan)
    if missing := set(plan.members) - set(welcome.roster):
        raise SyncError(f"nobody said where {sorted(missing)} listen")
    line = meeting.line(lambda: eras.standing())

    def tell(message: Message) -> None:
        try:
            line.send(message)
        except OSError as error:
            log.warning("%s: the controller did not get a %s: %s", name, message.kind, error)

    way = Way(name, welcome.secret, work.round_timeout_s, work.streams, work.congestion)
    eras = Eras(
        plan,
        way,
        welcome.roster,
        tell,
        after_round,
        work.reproducible,
        elastic=welcome.lease_s > 0,
        started=not welcome.source,
    )
    return Session(meeting, line, eras, Listener(meeting.accepting, welcome.secret, eras))


def _check(tensor: torch.Tensor, weight: float, residual: Residual | None) -> None:
    if tensor.dtype not in CODES or not tensor.is_contiguous() or not tensor.numel():
        raise ValueError(f"allreduce takes contiguous, non-empty tensors of {[str(d) for d in CODES]}")
    if residual is not None and tensor.dtype != torch.float32:
        raise ValueError(f"codecs are for float32; reduce a tensor of {tensor.dtype} without a residual")
    if not 0 <= weight < float("inf"):
        raise ValueError(f"weight {weight} is not a finite number of at least 0")
