"""A process group whose large sums of floats are rounds of a session. Gloo does all other collectives."""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import (
    AllreduceCoalescedOptions,
    AllreduceOptions,
    PrefixStore,
    ReduceOp,
    Store,
)

from testbed.sync.allreduce import ELEMENT_TYPES
from testbed.sync.c10d.group_rendezvous import GroupRendezvous
from testbed.sync.c10d.work import GlooWork, GroupFailure, RoundWork
from testbed.sync.errors import SyncError
from testbed.sync.session import Session

#: Smaller tensors go over gloo: a round costs each member some 2 ms of Python, in which 200 Mbit/s carry about 64 KiB.
LARGE_BYTES = 64 * 1024

#: Seconds within which a thread drops a completed work, also on a busy host.
DROPPED_S = 1.0

#: Keys in the group's store: the error of a rank that noticed a loss before the first sum, or for which one was late.
LOST, LATE = "lost", "late"
#: Seconds between two looks at these keys.
LOOK_S = 0.5

#: Collectives that wait for one peer only, so that gloo reports its end at once.
POINT_TO_POINT = ("send", "recv")

#: The oldest version with which all tests of collectives pass: with 2.6.0 they fail, and with 2.11.0 a training by
#: FSDP2 hangs on two cores.
OLDEST = (2, 13)

log = logging.getLogger(__name__)


def make_group(options: Any, controller: Sequence[str]) -> WanGroup:
    """Return the process group that PyTorch's options describe.

    Args:
        options: PyTorch's `_DistributedBackendOptions`.
        controller: The command by which rank 0 starts a controller if the environment names none.

    Raises:
        DistBackendError: PyTorch is older than OLDEST.
    """
    if tuple(map(int, torch.__version__.split(".")[:2])) < OLDEST:
        needed = ".".join(map(str, OLDEST))
        raise dist.DistBackendError(
            f"the backend wan needs PyTorch {needed} or later, and this is {torch.__version__}: use gloo, or "
            "`testbed.sync.join` and the schemes, which need 2.6 or later"
        )
    rank, size, among_all = options.group_rank, options.group_size, not options.global_ranks_in_group
    rendezvous = GroupRendezvous(options.store, rank, size, among_all, controller, options.global_ranks_in_group)
    return WanGroup(options.store, rank, size, options.timeout, rendezvous)


def _as_gloo(name: str) -> Any:
    """Return a method that passes a collective to gloo.

    If a Python subclass does not override a collective, PyTorch calls the base class with the interpreter's lock held
    (2.13, WORK_OVERRIDE). Gloo then waits for a mutex, and the thread with this mutex waits for the lock to drop a
    tensor: one of about a thousand functional collectives hung this way. A group of C++ is called without the lock.
    """

    def collective(self: WanGroup, *arguments: Any, **options: Any) -> Any:
        work = getattr(self.plain, name)(*arguments, **options)
        return work if name in POINT_TO_POINT else self._over_gloo(work, arguments)

    return collective


class WanGroup(dist.ProcessGroup):
    """The process group of the backend `wan`, as one rank sees it.

    The session begins with the first large sum of floats, which all ranks reach together.

    Attributes:
        plain: A group of C++ with gloo as its backend, which does all other collectives.
    """

    def __init__(self, store: Store, rank: int, size: int, timeout: timedelta, rendezvous: GroupRendezvous) -> None:
        # The constructor with a store is for C++: its group's methods can't be overridden.
        super().__init__(rank, size)  # type: ignore[call-arg]
        self._timeout_s = timeout.total_seconds()
        self._rendezvous = rendezvous
        self._gloo = dist.ProcessGroupGloo(PrefixStore("gloo/", store), rank, size, timeout=timeout)
        self._gloo._set_sequence_number_for_group()
        self.plain = dist.ProcessGroup(rank, size)  # type: ignore[call-arg]
        for group in (self, self.plain):
            for device in ("cpu", "cuda"):
                group._register_backend(torch.device(device), dist.ProcessGroup.BackendType.GLOO, self._gloo)
            group._set_default_backend(dist.ProcessGroup.BackendType.GLOO)
        self._guard = threading.Lock()
        self._session: Session | None = None
        self._failure = GroupFailure()
        self._first = PrefixStore("first/", store)
        self._lost = ""  # gloo's error for a rank that was lost before the first sum
        self._pid = os.getpid()
        atexit.register(self.shutdown)

    def getBackendName(self) -> str:
        """Return the name of the backend."""
        return "wan"

    # Collectives

    def allreduce(self, tensors: Any, opts: Any = None) -> dist.Work:  # type: ignore[override]
        """Sum a tensor. PyTorch may pass a tensor in place of a list, and an operation in place of options."""
        tensors = [tensors] if isinstance(tensors, torch.Tensor) else tensors
        if not isinstance(opts, AllreduceOptions):
            opts = _reducing_by(ReduceOp.SUM if opts is None else opts)
        if len(tensors) == 1 and self._is_planned(tensors[0], opts.reduceOp):
            return self._sum(tensors[0], opts.reduceOp, lambda: [tensors[0]])
        return self._over_gloo(self.plain.allreduce(tensors, opts), tensors)

    def allreduce_coalesced(self, tensors: list[torch.Tensor], opts: Any = None) -> dist.Work:
        """Sum several tensors at once. Tensors of different types or devices go over gloo."""
        opts = opts or AllreduceCoalescedOptions()
        if not all(self._is_planned(tensor, opts.reduceOp) for tensor in tensors):
            return self._over_gloo(self.plain.allreduce_coalesced(tensors, opts), tensors)
        if len({(tensor.dtype, tensor.device) for tensor in tensors}) > 1:
            return self._over_gloo(self.plain.allreduce_coalesced(tensors, opts), tensors)
        values = [tensor.detach() for tensor in tensors]  # parameters are written on another thread, with autograd on
        together = torch.cat([its.view(-1) for its in values])

        def part() -> list[torch.Tensor]:
            for its, sums in zip(values, torch.split(together, [t.numel() for t in values]), strict=True):
                its.copy_(sums.view_as(its))
            return tensors

        return self._sum(together, opts.reduceOp, part)

    broadcast = _as_gloo("broadcast")
    allgather = _as_gloo("allgather")
    all_gather_single_coalesced = _as_gloo("all_gather_single_coalesced")
    reduce_scatter = _as_gloo("reduce_scatter")
    reduce_scatter_single_coalesced = _as_gloo("reduce_scatter_single_coalesced")
    all_to_all_single = _as_gloo("all_to_all_single")
    send = _as_gloo("send")
    recv = _as_gloo("recv")
    barrier = _as_gloo("barrier")

    def _is_planned(self, tensor: torch.Tensor, op: Any) -> bool:
        """Return whether the session reduces a tensor. All ranks decide alike, by shape, type and operation."""
        return (
            self.size() > 1
            and self._rendezvous.planned
            and (op == ReduceOp.SUM or op == ReduceOp.AVG)
            and tensor.layout == torch.strided
            and tensor.dtype in ELEMENT_TYPES
            and tensor.nbytes >= LARGE_BYTES
            and tensor.is_contiguous()
            and not tensor.is_inference()  # no other thread may write into inference tensors
        )

    def _over_gloo(self, work: dist.Work, arguments: Any) -> GlooWork:
        """Return gloo's work on a collective's arguments as one that also ends when the group fails."""
        return GlooWork(work, _device_of(arguments), self._failure)

    def _sum(self, values: torch.Tensor, op: Any, finish: Callable[[], list[torch.Tensor]]) -> RoundWork:
        """Replace values by their sum or mean over the ranks.

        Args:
            values: A contiguous tensor.
            op: ReduceOp.SUM or AVG.
            finish: Called afterwards; copies the result to the collective's tensors and returns them.
        """
        flat = values.detach().view(-1)
        scale = self.size() if op == ReduceOp.SUM else 1

        def end() -> list[torch.Tensor]:
            if scale != 1:
                flat.mul_(scale)
            return finish()

        with self._guard:
            work = self._joined().allreduce(flat, async_op=True)
        return RoundWork(work, values.device, end, self._failure.set)

    # Begin and end

    def _joined(self) -> Session:
        """Return the session, and join the other ranks if there is none yet.

        If this rank can't join, its group has failed: the other ranks may still wait at the controller of this try, and
        would not come to that of another.
        """
        if self._failure.error is not None:
            raise dist.DistBackendError(str(self._failure.error))
        if self._session is None:
            come = self.plain.barrier()
            threading.Thread(target=self._await_all, args=(come,), name="wan-first", daemon=True).start()
            try:
                self._session = self._rendezvous.join(self._timeout_s, self._failure.set)
            except SyncError as error:
                lost = f"a rank was lost before the first large sum: {self._lost}"
                why = SyncError(lost, rule="peer-lost") if self._lost else error
                self._failure.set(why)
                raise dist.DistBackendError(str(why)) from error
            self._failure.expected = True
        return self._session

    def _await_all(self, come: dist.Work) -> None:
        """Wait until all ranks have come to the first sum. If one was lost before, join no more.

        Gloo notices that at the lost rank's neighbours in the barrier, and they tell the others by the store. After a
        timeout a rank is only late, and the wait at the controller ends with its own error; gloo has then closed the
        connections to others, which must not take that for a loss.
        """
        try:
            while not come.is_completed():
                if self._first.check([LOST]):
                    raise RuntimeError(self._first.get(LOST).decode())
                time.sleep(LOOK_S)
            come.wait()
        except RuntimeError as error:
            text = str(error)
            with suppress(RuntimeError):  # the store has ended with its host
                if "Timed out" in text:
                    self._first.set(LATE, text)
                time.sleep(LOOK_S)
                if self._first.check([LATE]):
                    return
                self._first.set(LOST, text)
            self._lost = text
            self._rendezvous.give_up()

    def abort(self) -> None:
        """End the running collectives with an error, here and at the other ranks."""
        self._failure.set(SyncError("the process group was aborted"))
        self._rendezvous.give_up()  # a thread at the first sum holds the guard while it waits for the other ranks
        if self._session is not None:
            self._session.abort("the process group was aborted")
        self._leave()
        self._gloo.abort()

    def shutdown(self) -> None:
        """Leave after the other ranks have read all frames. A second call does nothing, nor one in a forked child.

        Raises:
            DistBackendError: A rank did not read all frames within the timeout; names the rank.
        """
        if os.getpid() != self._pid:
            return
        try:
            self._leave()
        except SyncError as error:
            raise dist.DistBackendError(str(error)) from error
        finally:
            self._gloo.shutdown()
            # Gloo's thread needs the interpreter's lock to drop its last work, and PyTorch (2.13) joins that thread
            # with the lock held when the group is freed: three of nine short trainings over gloo hung this way.
            time.sleep(DROPPED_S)

    def _leave(self) -> None:
        atexit.unregister(self.shutdown)
        with self._guard:
            session, self._session = self._session, None
            failure = self._failure.error
            self._failure.set(SyncError("the process group was shut down"))
        try:
            if session is not None:
                session.__exit__(type(failure) if failure else None, failure, None)
        finally:
            self._rendezvous.close()


def _device_of(arguments: Any) -> torch.device:
    """Return the device of the tensors among a collective's arguments, which may be nested lists of tensors."""
    for argument in arguments:
        if isinstance(argument, torch.Tensor):
            return argument.device
        if isinstance(argument, list | tuple) and argument:
            return _device_of(argument)
    return torch.device("cpu")


def _reducing_by(op: Any) -> AllreduceOptions:
    opts = AllreduceOptions()
    opts.reduceOp = op
    return opts
