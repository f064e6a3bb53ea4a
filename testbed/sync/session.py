"""A member's session: it joins a run, reduces tensors with the other members, and reports to the controller."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, overload

import torch

from testbed.plan import Plan
from testbed.protocol import Arrived, ControlMessage, FragmentDrift, Goodbye, checked_metrics
from testbed.sockets import Tls
from testbed.sync.allreduce import ELEMENT_TYPES, AllReduceEngine, AllReduceGroup, ElasticGroup, RoundResult
from testbed.sync.buffers import PinnedBuffers
from testbed.sync.checkpoint import StateDictFns, Stateful, save
from testbed.sync.codecs import Residual
from testbed.sync.codecs.codec import bytes_of
from testbed.sync.control_connection import ControlConnection, ControlledMember
from testbed.sync.engine_control import EngineControl
from testbed.sync.errors import SyncError
from testbed.sync.executor import AsyncExecutor, Work
from testbed.sync.rendezvous import Rendezvous, rendezvous, telling_failure
from testbed.sync.reports import ProgressReporter, RoundReports, StepReport
from testbed.sync.strategies.strategy_methods import StrategyMethods
from testbed.sync.transport import Listener

if TYPE_CHECKING:
    from testbed.sync.ddp import Hook


class Session(ControlledMember, StrategyMethods):
    """One member of a run, made by `join`. A context manager; leaving it ends the member's part in the run.

    One thread at a time may use a session. Topology never appears here: the controller plans who sends what to whom.

    In an elastic run members may be lost, and may join, while others train. A member that joins such a run calls
    `share` before its first round and receives another member's state.

    Attributes:
        name: The member's name.
        job: The run's settings, as the controller sent them.
    """

    def __init__(self, met: Rendezvous, connection: ControlConnection, engine: AllReduceEngine) -> None:
        super().__init__(met.name, connection)
        self.job = met.job
        self._engine = engine
        try:
            self._listener = Listener(met.accepting, met.settings(), engine)
        except BaseException:
            engine.close()
            raise
        self._pinned = PinnedBuffers()
        self._executor = AsyncExecutor(f"{self.name}: rounds")
        self._registered: dict[str, Stateful] = {}
        self._shares = False
        self._engine_control = EngineControl(self.name, connection, engine, met.keys)
        self._reports = RoundReports(
            self.name, lambda: engine.current.outbox.samples(), self._listener.arrivals, connection.tell
        )
        self._progress = ProgressReporter(self._tell_arrivals)
        try:
            self._progress.start(self.name)
            self._start()
        except BaseException:
            self._close()
            raise

    @property
    def members(self) -> tuple[str, ...]:
        """The names of the members of the current generation."""
        return self._engine.current.members

    @property
    def rounds(self) -> int:
        """The number of the last completed round, from 1 on; 0 before the first."""
        return self._engine.finished

    @property
    def plan(self) -> Plan:
        """The plan of the next round."""
        return self._engine.current.plan

    @property
    def elastic(self) -> bool:
        """True if members may be lost, and may join, while others train."""
        return isinstance(self._engine, ElasticGroup)

    def register_state_dict_fn(
        self, key: str, load_state_dict: Callable[[Mapping[str, Any]], Any], state_dict: Callable[[], dict[str, Any]]
    ) -> None:
        """Have `share` hand over a part of the program's own state too, as torchft's `Manager` does.

            session.register_state_dict_fn("data", loader.load_state_dict, loader.state_dict)
            done = session.share(model=model, optimizer=optimizer, strategy=strategy)

        A checkpoint contains the part only if it is passed to `save` as well.

        Args:
            key: The part's name, the same at all members.
            load_state_dict: Restores a state that another member's `state_dict` returned; called in `share`.
            state_dict: Returns the state between two steps, a dictionary of tensors and plain values. A joining member
                accepts 8 times the bytes of its own tensors, and 1 MiB.

        Raises:
            ValueError: The key is taken, or `share` was called before.
        """
        if self._shares or key in self._registered:
            raise ValueError(f"{key!r} can't be registered: take another key, and register it before session.share(…)")
        self._registered[key] = StateDictFns(state_dict, load_state_dict)

    def share(self, **parts: Stateful) -> int:
        """Name the state that a member receives when it joins later, and receive it if this member joined later.

            done = session.share(model=model, optimizer=optimizer, strategy=strategy)

        A member that joins needs the state between two steps, so the loop calls `step_done` after each step, with a
        strategy or without. Otherwise no member can join.

        Args:
            **parts: The model, the optimizer, the strategy, … by name. All members name the same parts. Parts that
                were registered are added, and restored after these.

        Returns:
            The number of the last completed round; this member continues with the round after it.

        Raises:
            SyncError: No member could send its state.
            ValueError: A part has the name of a registered one, or is a strategy under which no member can join.
        """
        if both := sorted(parts.keys() & self._registered.keys()):
            raise ValueError(f"{', '.join(both)}: registered already; leave it out, or give it another name")
        self._shares = True
        if isinstance(self._engine, ElasticGroup):
            for name, part in parts.items():
                if why := getattr(part, "elastic_misfit", ""):
                    raise ValueError(f"{name}: {why}")
            self._engine.share({**parts, **self._registered})
        return self.rounds

    def step_done(self) -> None:
        """Say that this member has used the last round, so that its state is the one that a joining member needs."""
        if isinstance(self._engine, ElasticGroup):
            self._engine.handover.offer(self.rounds)

    @overload
    def allreduce(
        self,
        tensor: torch.Tensor,
        weight: float = 1.0,
        residual: Residual | None = None,
        async_op: Literal[False] = False,
    ) -> RoundResult: ...
    @overload
    def allreduce(
        self, tensor: torch.Tensor, weight: float = 1.0, residual: Residual | None = None, *, async_op: Literal[True]
    ) -> Work[RoundResult]: ...
    def allreduce(
        self, tensor: torch.Tensor, weight: float = 1.0, residual: Residual | None = None, async_op: bool = False
    ) -> RoundResult | Work[RoundResult]:
        """Replace a tensor, in place, by the members' weighted mean, with the same bits at all members.

        All members call it equally often, in the same order, with tensors of the same shape and type. Elements travel
        in the tensor's own type: float16 and bfloat16 are summed in float32 at each member and rounded once for each
        hop (relative 2^-11 and 2^-8). Without a residual the mean is exact up to rounding.

        With `async_op`, rounds run in the order of the calls. A round begins when the first means of the one before
        are there (if an earlier tensor had its shape), so two rounds run at a time. In an elastic run they run one
        after the other, because a lost member would leave two rounds to recover.

        Args:
            tensor: A contiguous tensor of any shape, float16, bfloat16, float32 or float64, on the host or a GPU.
            weight: This member's weight, such as its number of samples; at least 0.
            residual: The errors of codecs in earlier rounds of this tensor. The caller keeps a residual for each
                float32 tensor that it reduces in many rounds; chunks then use the codecs that the plan names. None
                reduces without codecs.
            async_op: Return at once, as in `torch.distributed`. Leave the tensor alone until the returned work's
                `wait` returns.

        Returns:
            The round's result, or with `async_op` a Work whose `wait` returns it.

        Raises:
            SyncError: The round failed; names the peers, the epoch and the round. The session can't be used any more.
            Stopped: The controller told this member to leave. The session can't be used any more.
            ValueError: The tensor, the weight or the residual is not of the kind above.
        """
        _check(tensor, weight, residual)
        made = self._pinned.made(tensor) if tensor.is_cuda else None
        if async_op or self._executor.busy:
            work = self._executor.begin(lambda: self._begin(tensor, weight, residual, made, overlaps=True))
            return work if async_op else work.wait()
        return self._begin(tensor, weight, residual, made)()

    def allreduce_later(
        self, tensor: torch.Tensor, weight: float = 1.0, residual: Residual | None = None
    ) -> Work[RoundResult]:
        """Begin an all-reduce. Deprecated: write `allreduce(…, async_op=True)`."""
        warnings.warn("allreduce_later is deprecated: write allreduce(..., async_op=True)", DeprecationWarning, 2)
        return self.allreduce(tensor, weight, residual, async_op=True)

    @property
    def ddp_hook(self) -> Hook:
        """A new hook for a DistributedDataParallel: `ddp_model.register_comm_hook(session, session.ddp_hook)`.

        Every member must use all of the model's parameters in each step. With `find_unused_parameters=True` a parameter
        that is unused at one member would keep its own gradient there, and get the mean at the others.

        Raises:
            ValueError: The run is elastic. A member joins with a round, and gets its state at the end of that step; the
                hook has several rounds in a step.
        """
        from testbed.sync.ddp import hook_of

        if self.elastic:
            raise ValueError(
                "the hook has a round for each bucket of a step, which leaves members no moment to come back: use "
                "session.gradients(model, optimizer), or start the controller without --quorum"
            )
        return hook_of(self)

    def _begin(
        self,
        tensor: torch.Tensor,
        weight: float,
        residual: Residual | None,
        made: torch.cuda.Event | None,
        overlaps: bool = False,
    ) -> Callable[[], RoundResult]:
        """Begin a round. Returns a function that waits for its end and returns its result.

        `made` is the event after which a device has computed the tensor; None for a tensor on the host.
        """
        if isinstance(self._engine, ElasticGroup) and self._engine.handover.source:
            raise SyncError(f"{self.name} joined while others train: call session.share(…) before its first round")
        if residual is not None:
            residual.check(tensor.numel())  # not earlier: a queued round of the same residual gives it its size
        # An overlapping round's predecessor may not be used yet: its caller may still report it.
        self._reports.tell(keep=1 if overlaps else 0)
        with _outside_inference_mode():
            flat = tensor.detach().view(-1)
            values = _writable(flat) if made is None else self._pinned.fetch(flat, made)
            self._progress.round_began()
            with self._failing():
                await_end = self._engine.begin(values, weight, residual, overlaps=overlaps)

        def end() -> RoundResult:
            with self._failing(), _outside_inference_mode():
                result = replace(await_end(), tensor=tensor)
            self._progress.round_ended()
            if made is not None:
                self._pinned.put_back(values, flat)
            self._reports.add(result)
            return result

        return end

    @contextmanager
    def _failing(self) -> Iterator[None]:
        """Let an error of one round fail all later rounds, so that rounds already queued do not wait for a timeout."""
        try:
            yield
        except SyncError as error:
            self._engine.fail(error)
            raise

    def save(self, path: str | Path, **parts: Stateful) -> None:
        """Write a checkpoint, between two steps. `sync.load` reads it.

            session.save(path, model=model, optimizer=optimizer, strategy=strategy)

        With a strategy, all members save after the same step.

        Args:
            path: The file to write; an existing file is replaced as a whole.
            **parts: The model, the optimizer, the strategy, … by name.

        Raises:
            OSError: The file can't be written; names it. An existing file stays as it is.
            CheckpointError: A state holds more than tensors and plain values. An existing file stays as it is.
        """
        # Before the round is read, because a strategy waits for the rounds under way. A module's state refers to its
        # tensors, so these rounds change it, too.
        states = {name: part.state_dict() for name, part in parts.items()}
        save(Path(path), self.rounds, self.plan, states)

    def report(
        self,
        metrics: Mapping[str, float] | None = None,
        compute_s: float = 0.0,
        paced_s: float = 0.0,
        late_s: float = 0.0,
        drift: tuple[FragmentDrift, ...] = (),
        steps: int = 0,
        late_steps: int = 0,
    ) -> bool:
        """Report the last round, and the steps before it, to the controller.

        A round that is not reported by this call is reported without metrics and times when the next round begins
        (after `async_op`, the round after that).

        Args:
            metrics: Figures to keep, such as the loss; up to 64.
            compute_s: Seconds for which the steps computed.
            paced_s: Seconds for which the steps were held back to a declared speed.
            late_s: Seconds by which the worst step ended after its declared end.
            drift: What the strategy's `drift` returned.
            steps: The number of the steps.
            late_steps: The number of the steps that took longer than declared.

        Returns:
            False if there was no round to report.

        Raises:
            ValueError: There are more metrics than a report has room for, or another figure is negative or not finite.
        """
        known = checked_metrics(metrics or {})
        times = {"compute_s": compute_s, "paced_s": paced_s, "late_s": late_s}
        for name, value in {**times, "steps": steps, "late_steps": late_steps}.items():
            if not 0 <= value < float("inf"):
                raise ValueError(f"{name}={value}: write a finite number of at least 0")
        return self._reports.tell(StepReport(known, compute_s, paced_s, late_s, drift, steps, late_steps))

    def _tell_arrivals(self) -> None:
        with suppress(OSError):  # while the controller is away; `tell` logs the outage
            self._connection.send(Arrived(self.name, self._listener.arrivals()))

    def finish(self, digest: str = "", metrics: Mapping[str, float] | None = None) -> None:
        """Leave the run, after the peers have read all that was sent to them.

        Leaving the session's context without an error calls `finish` too.

        Args:
            digest: The SHA-256 of the parameters, if the controller is to compare it among members.
            metrics: Final figures to keep, up to 64.

        Raises:
            SyncError: A peer did not read all that was sent to it within a round's timeout.
        """
        self._executor.close()
        self._reports.tell()
        goodbye = Goodbye(self.name, self.rounds, digest, checked_metrics(metrics or {}))
        if isinstance(self._engine, ElasticGroup):
            self._goodbye(goodbye)
            # Members that miss means because another was lost may still fetch them here.
            self._released.wait(self.job.round_timeout_s)
            self._engine.current.drain()
        else:
            self._engine.current.drain()
            self._goodbye(goodbye)

    def abort(self, reason: str) -> None:
        """End the current and all later rounds with a SyncError. Any thread may call it.

        Args:
            reason: The error's text.
        """
        self._engine.fail(SyncError(reason))

    def _handle(self, message: ControlMessage) -> None:
        self._engine_control.handle(message)

    def _fail(self, error: SyncError) -> None:
        self._engine.fail(error)

    def _close(self) -> None:
        self._progress.close()
        self._engine.close()
        self._engine_control.close()
        self._executor.close()
        self._listener.close()


def join(
    control: str,
    name: str,
    listen: str = "",
    device: str = "cpu",
    timeout: float = 120.0,
    token: str = "",
    after_round: int = 0,
    tls: str | Path | None = None,
    *,
    patience_s: float | None = None,
) -> Session:
    """Join a run, and wait until all its members are there.

    Args:
        control: The controller's address: `unix:/path` or `tcp:host:port`.
        name: This member's name, one of those that the controller was started with.
        listen: The IPv4 address at which peers reach this member. Empty takes the first address of an interface other
            than the loopback. The address may appear while the call waits for it.
        device: The device that the member trains on, for the controller's records.
        timeout: The longest wait, in seconds, for the other members, and, up to 120 s, for the address and for the
            controller, each.
        token: The secret by which the controller accepts this member over TCP without TLS.
        after_round: The round of the restored checkpoint; training continues with the round after it. All members
            give the same.
        tls: The folder with this member's certificate, with which all connections are encrypted.
        patience_s: The old name of `timeout`, deprecated.

    Raises:
        SyncError: The address, the controller or a member did not appear in time, or the controller refused.
        TlsError: The folder's certificate can't be used.
    """
    if patience_s is not None:
        warnings.warn("patience_s is deprecated: write timeout", DeprecationWarning, 2)
        timeout = patience_s
    secured = None if tls is None else Tls(Path(tls))
    return session_of(rendezvous(control, name, listen, device, timeout, token, secured), after_round)


def session_of(
    met: Rendezvous, after_round: int = 0, on_failure: Callable[[SyncError], None] = lambda error: None
) -> Session:
    """Return the session of a member after the rendezvous. Tells the controller why if it can't be made.

    Args:
        met: The result of the rendezvous.
        after_round: The last round that the members have completed.
        on_failure: Called, on any thread, with the error that ends all rounds, when a peer is lost. Not called in an
            elastic run, which survives the loss.

    Raises:
        PlanError: The controller sent an invalid plan.
        SyncError: This machine can't do what the job asks for, or the controller's welcome is incomplete.
    """
    with ExitStack() as on_error:
        on_error.enter_context(met.accepting)
        on_error.enter_context(closing(met.channel))
        with telling_failure(met, after_round):
            session = _make_session(met, after_round, on_failure)
        on_error.pop_all()
    return session


def _make_session(met: Rendezvous, after_round: int, on_failure: Callable[[SyncError], None]) -> Session:
    welcome, job = met.welcome, met.job
    plan = Plan.from_json(welcome.plan)
    if missing := set(plan.members) - set(welcome.roster):
        raise SyncError(f"the controller sent a plan with {sorted(missing)}, but not their addresses")
    settings = met.settings(plan.epoch)
    if not welcome.lease_s:
        group = AllReduceGroup(plan, settings, welcome.roster, after_round, job.reproducible)
        session = Session(met, met.connection(), group)
        group.on_failure(on_failure)  # last: where the session fails, its group is closed, which is a failure as well
        return session
    connection = met.connection(lambda: elastic.rejoin())
    elastic = ElasticGroup(
        plan, settings, welcome.roster, connection.tell, after_round, job.reproducible, welcome.source
    )
    return Session(met, connection, elastic)


def _outside_inference_mode() -> AbstractContextManager[object]:
    """Return a context in which new tensors are normal ones, also if the caller is in `torch.inference_mode`.

    Other threads add to a round's sums, and PyTorch lets no other thread change a tensor that was made in that mode.
    """
    return torch.inference_mode(False) if torch.is_inference_mode_enabled() else nullcontext()


def _writable(values: torch.Tensor) -> torch.Tensor:
    """Return values on the host as a tensor that other threads may change, in the same memory."""
    return torch.frombuffer(bytes_of(values), dtype=values.dtype) if values.is_inference() else values


def _check(tensor: torch.Tensor, weight: float, residual: Residual | None) -> None:
    dense = tensor.layout == torch.strided  # a sparse tensor refuses to say if it is contiguous
    if tensor.dtype not in ELEMENT_TYPES or not dense or not tensor.is_contiguous() or not tensor.numel():
        raise ValueError(f"allreduce takes dense, contiguous, non-empty tensors of {[str(d) for d in ELEMENT_TYPES]}")
    if tensor.device.type not in ("cpu", "cuda"):
        raise ValueError(f"allreduce takes tensors on the host or a CUDA device, and this one is on {tensor.device}")
    if residual is not None and tensor.dtype != torch.float32:
        raise ValueError(f"codecs take float32; reduce a tensor of {tensor.dtype} without a residual")
    if not 0 <= weight < float("inf"):
        raise ValueError(f"weight={weight}: write a finite number of at least 0")
