"""A member's session: joined to a controller, it reduces tensors with the others and reports how that went."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

import torch

from testbed.plan import Plan
from testbed.protocol import Arrived, FragmentDrift, Goodbye, checked_metrics
from testbed.sync.allreduce import ELEMENT_TYPES, AllReduceEngine, AllReduceGroup, ElasticGroup, RoundResult
from testbed.sync.buffers import PinnedBuffers
from testbed.sync.checkpoint import Stateful, save
from testbed.sync.codecs import Residual
from testbed.sync.control_connection import ControlConnection
from testbed.sync.control_loop import ControlLoop
from testbed.sync.errors import SyncError
from testbed.sync.executor import AsyncExecutor, Work
from testbed.sync.progress_reporter import ProgressReporter
from testbed.sync.rendezvous import Rendezvous, rendezvous
from testbed.sync.reports import RoundReports, StepReport
from testbed.sync.strategies.strategy_methods import StrategyMethods
from testbed.sync.transport import CLOSE_S, Listener
from testbed.tls import Tls

if TYPE_CHECKING:
    from testbed.sync.ddp import Hook


class Session(StrategyMethods):
    """One member among `members`, made by `join`. A context manager; leaving it says goodbye.

    For one caller at a time.

    In an elastic run members may be lost, and come, while others train. A member that comes calls `share` before its
    first round, and gets the state of another there.
    """

    def __init__(self, met: Rendezvous, connection: ControlConnection, engine: AllReduceEngine) -> None:
        self.name = met.name
        self.job = met.job
        self._connection = connection
        self._engine = engine
        self._listener = Listener(met.accepting, met.settings(), engine)
        self._pinned = PinnedBuffers()
        self._executor = AsyncExecutor(f"{self.name}: rounds")
        self._control = ControlLoop(self.name, connection, engine, met.keys)
        self._reports = RoundReports(
            self.name, lambda: engine.current.outbox.samples(), self._listener.arrivals, connection.tell
        )
        self._progress = ProgressReporter(self._tell_arrivals)
        self._progress.start(self.name)

    @property
    def members(self) -> tuple[str, ...]:
        """Those who take part now."""
        return self._engine.current.members

    @property
    def rounds(self) -> int:
        """The last round that is over."""
        return self._engine.finished

    @property
    def plan(self) -> Plan:
        """The plan that the next round goes by."""
        return self._engine.current.plan

    def share(self, **parts: Stateful) -> int:
        """Name what a member that comes later begins from, say `model=model, optimizer=optimizer, strategy=strategy`.

        A member that comes later gets the state of another, put into its own parts, and goes on with the round that
        follows the one that this returns: the last one that is over. SyncError when it can't be had.

        Strategies hand the state over after a step. A caller that reduces without one says `step_done` when it has
        used a round.
        """
        if isinstance(self._engine, ElasticGroup):
            self._engine.share(parts)
        return self.rounds

    def step_done(self) -> None:
        """The last round has been used: members that are between two steps now hold the same."""
        if isinstance(self._engine, ElasticGroup):
            self._engine.handover.offer(self.rounds)

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
        if self._executor.busy:
            return self.allreduce_later(tensor, weight, residual).wait()
        return self._begin(tensor, weight, residual, self._made(tensor))()

    def allreduce_later(
        self, tensor: torch.Tensor, weight: float = 1.0, residual: Residual | None = None
    ) -> Work[RoundResult]:
        """Begin an `allreduce` and go on; the tensor may be used again once the work was waited for.

        Rounds are done in the order in which they were asked for, at every member the same. One begins when the first
        means of the one before are there (if there was a tensor of its shape before), so that two are on at a time,
        unless the run is elastic: there a member that is lost would leave two to be recovered.
        """
        _check(tensor, weight, residual)
        made = self._made(tensor)
        return self._executor.begin(lambda: self._begin(tensor, weight, residual, made, later=True), lambda end: end())

    @cached_property
    def ddp_hook(self) -> Hook:
        """For DistributedDataParallel: `ddp_model.register_comm_hook(session, session.ddp_hook)`."""
        from testbed.sync.ddp import hook_of

        return hook_of(self)

    def _made(self, tensor: torch.Tensor) -> torch.cuda.Event | None:
        """When a device has made a tensor, which may still be to come."""
        return self._pinned.made(tensor) if tensor.is_cuda else None

    def _begin(
        self,
        tensor: torch.Tensor,
        weight: float,
        residual: Residual | None,
        made: torch.cuda.Event | None,
        later: bool = False,
    ) -> Callable[[], RoundResult]:
        """Begin a round; what ends it."""
        if isinstance(self._engine, ElasticGroup) and self._engine.handover.source:
            raise SyncError(f"{self.name} came while others train: call share() before its first round")
        self._reports.tell(keep=1 if later else 0)  # the caller may have just taken its result in, to report it next
        flat = tensor.detach().view(-1)
        values = flat if made is None else self._pinned.fetch(flat, made)
        self._progress.round_began()
        with self._failing():
            await_end = self._engine.begin(values, weight, residual, overlaps=later)

        def end() -> RoundResult:
            with self._failing():
                result = replace(await_end(), tensor=tensor)
            self._progress.round_ended()
            if made is not None:
                self._pinned.put_back(values, flat)
            self._reports.add(result)
            return result

        return end

    @contextmanager
    def _failing(self) -> Iterator[None]:
        """An error in a round is the session's: rounds that were asked for already must not wait once more."""
        try:
            yield
        except SyncError as error:
            self._engine.fail(error)
            raise

    def save(self, path: Path, **parts: Stateful) -> None:
        """Write a checkpoint of what is given, say `model=model, optimizer=optimizer, strategy=strategy`.

        Between two steps; `sync.load` reads it. With a strategy, all members save after the same step.
        """
        save(path, self.rounds, self.plan, **parts)

    def report(
        self,
        metrics: Mapping[str, float] | None = None,
        compute_s: float = 0.0,
        paced_s: float = 0.0,
        late_s: float = 0.0,
        drift: tuple[FragmentDrift, ...] = (),
    ) -> bool:
        """Tell the controller about the last round and the steps before it; False when there is none to tell of.

        Rounds that nobody reports are told of without metrics and times, when the next one begins (after
        `allreduce_later`, the one after that). ValueError when the metrics are more than a report has room for.
        """
        return self._reports.tell(StepReport(checked_metrics(metrics or {}), compute_s, paced_s, late_s, drift))

    def _tell_arrivals(self) -> None:
        """Tell what came in so far. A controller that is gone has no use for it, and that is told elsewhere."""
        with suppress(OSError):
            self._connection.send(Arrived(self.name, self._listener.arrivals()))

    def finish(self, digest: str = "", metrics: Mapping[str, float] | None = None) -> None:
        """Say goodbye, with the SHA-256 of the parameters if the controller is to compare them, once the peers have
        read all that was sent to them. Leaving the session without an error does so too."""
        self._executor.close()
        self._reports.tell()
        goodbye = Goodbye(self.name, self.rounds, digest, checked_metrics(metrics or {}))
        if isinstance(self._engine, ElasticGroup):
            self._goodbye(goodbye)
            # A member that was lost may have left others short of means.
            self._control.released.wait(self.job.round_timeout_s)
            self._engine.current.drain()
        else:
            self._engine.current.drain()
            self._goodbye(goodbye)

    def abort(self, reason: str) -> None:
        """End the rounds that are on, and all later ones, with a SyncError that says why. Any thread may."""
        self._engine.fail(SyncError(reason))

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Leave: `finish`, unless that was done. An error on the way out is told to the controller. SyncError where a
        peer has not read all that was sent to it within a round's timeout."""
        try:
            if not self._control.leaving and kind is None:
                self.finish()
        except BaseException as undelivered:
            error = undelivered
            raise
        finally:
            failed = not self._control.leaving
            if failed:
                self._connection.leave()
                said = f"{type(error).__name__ if error else ''}: {error}"
                self._goodbye(Goodbye.with_error(self.name, self.rounds, said))
            # The controller closes the line once it has read the Goodbye. Closed here before that, the line would fail
            # a message that the controller is sending, and the unread Goodbye would be lost with the connection.
            if failed or not isinstance(self._engine, ElasticGroup):
                self._control.released.wait(CLOSE_S)
            self._control.released.set()
            self._progress.close()
            self._engine.close()
            self._executor.close()
            self._listener.close()
            self._connection.close()
            self._control.close()

    def _goodbye(self, message: Goodbye) -> None:
        self._control.leaving = True
        self._connection.tell(message)


def join(
    control: str,
    name: str,
    listen: str = "",
    device: str = "cpu",
    patience_s: float = 120.0,
    token: str = "",
    after_round: int = 0,
    tls: str | Path | None = None,
) -> Session:
    """Join the run of the controller at `control` (`unix:/path` or `tcp:host:port`) as the member `name`.

    Listens for peers on the IPv4 address `listen`, or on the first one that an interface other than the loopback
    gets; either may appear only while this waits. `token` is this member's own, for which it is let in over TCP; or its
    certificate is that, in the folder `tls`, with which all connections are encrypted. Members that restored
    checkpoints of one round go on `after_round`; all say the same.

    Returns when all members are there. SyncError when the address, the controller or the others are not there within
    `patience_s` seconds each; TlsError when the folder can't be used.
    """
    secured = None if tls is None else Tls(Path(tls))
    return session_of(rendezvous(control, name, listen, device, patience_s, token, secured), after_round)


def session_of(
    met: Rendezvous, after_round: int = 0, on_failure: Callable[[SyncError], None] = lambda error: None
) -> Session:
    """The session of a member that has met the others. In a run whose members never change `on_failure` is called, on
    any thread, with the error that ends all rounds: a peer is gone, or the controller says that one is."""
    welcome, job = met.welcome, met.job
    plan = Plan.from_json(welcome.plan)
    if missing := set(plan.members) - set(welcome.roster):
        raise SyncError(f"nobody said where {sorted(missing)} listen")
    settings = met.settings(plan.epoch)
    if not welcome.lease_s:
        group = AllReduceGroup(plan, settings, welcome.roster, after_round, job.reproducible)
        group.on_failure(on_failure)
        return Session(met, met.connection(), group)
    connection = met.connection(lambda: elastic.rejoin())
    elastic = ElasticGroup(
        plan, settings, welcome.roster, connection.tell, after_round, job.reproducible, welcome.source
    )
    return Session(met, connection, elastic)


def _check(tensor: torch.Tensor, weight: float, residual: Residual | None) -> None:
    if tensor.dtype not in ELEMENT_TYPES or not tensor.is_contiguous() or not tensor.numel():
        raise ValueError(f"allreduce takes contiguous, non-empty tensors of {[str(d) for d in ELEMENT_TYPES]}")
    if residual is not None and tensor.dtype != torch.float32:
        raise ValueError(f"codecs are for float32; reduce a tensor of {tensor.dtype} without a residual")
    if not 0 <= weight < float("inf"):
        raise ValueError(f"weight {weight} is not a finite number of at least 0")
