"""Communication hooks for DistributedDataParallel (DDP): one reduces by a session, one leaves gradients local.

This module has no postponed annotations, because DDP compares a hook's annotations with the types themselves.
"""

from collections.abc import Callable

import torch
from torch.distributed import GradBucket  # type: ignore[attr-defined]  # public, but not declared as such
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel

from testbed.sync.allreduce import RoundResult
from testbed.sync.codecs import Residual
from testbed.sync.executor import Work
from testbed.sync.strategies.strategy import Reducer, check_whole

Hook = Callable[[object, GradBucket], torch.futures.Future[torch.Tensor]]


def hook_of(reducer: Reducer) -> Hook:
    """Return a hook for `register_comm_hook` that replaces each bucket's gradients by all members' mean.

    Each member's process group has a world size of 1, so DDP itself sends nothing. Buckets are reduced in the order in
    which backward fills them. The model determines this order, so it is the same at every member. Two buckets overlap
    once DDP has settled on its buckets' sizes.

    Each bucket of float32 has a residual; others are reduced without codecs. DDP rearranges its buckets after the first
    step; the residuals of the old buckets are then dropped.

    A failed round makes `backward` raise a RuntimeError with the SyncError's text. So does a round inside a group,
    because DDP's copies of the model would diverge.
    """
    residuals: dict[int, tuple[list[int], Residual]] = {}

    def session_hook(state: object, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        values = bucket.buffer()
        # The size is not enough: after the first step a model of one bucket has its parameters in another order.
        layout = [id(parameter) for parameter in bucket.parameters()]
        known, residual = residuals.get(bucket.index(), ([], Residual()))
        if known != layout:
            residual = Residual()
            residuals[bucket.index()] = layout, residual
        future = _future_of(values)

        def finish(work: Work[RoundResult]) -> None:
            try:
                check_whole(work.wait())
            except Exception as error:  # any error must be raised where DDP waits
                future.set_exception(error)  # type: ignore[arg-type]  # PyTorch's own annotation is wrong
            else:
                future.set_result(values)

        coded = residual if values.dtype == torch.float32 else None
        reducer.allreduce(values, 1.0, coded, async_op=True).then(finish)
        return future

    return session_hook


class LocalGradients:
    """A DDP model whose gradients and buffers stay local until `exchange`.

    DDP takes one communication hook in its life, so this hook stays registered; after `exchange` it does what DDP does
    without a hook.

    Raises:
        ValueError: The model has a communication hook already.
    """

    def __init__(self, model: DistributedDataParallel) -> None:
        try:
            model.register_comm_hook(self, local_hook)
        except RuntimeError as error:
            raise ValueError(
                f"this DistributedDataParallel has a communication hook already: {error}. "
                "Leave out its register_comm_hook, and wrap a model once"
            ) from error
        self._model = model
        # PyTorch 2.13 calls it forward_sync_buffers, and keeps this name.
        self._syncs_buffers = model.broadcast_buffers
        self.local = True
        model.broadcast_buffers = False

    def __str__(self) -> str:
        text = "DistributedDataParallel exchanges no gradients and no buffers"
        if self._model.find_unused_parameters:
            text += (
                "; but find_unused_parameters=True makes it ask all ranks in each backward pass which parameters were "
                "used, which costs 4 bytes a parameter and a round trip: leave it out if all are used"
            )
        return text

    @property
    def group(self) -> torch.distributed.ProcessGroup:
        """The process group of the model's ranks."""
        return self._model.process_group

    def exchange(self) -> None:
        """Let DDP exchange gradients and buffers from now on."""
        self.local = False
        self._model.broadcast_buffers = self._syncs_buffers


def local_hook(state: LocalGradients, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Return the bucket unchanged while the model's gradients are local, the mean over the ranks afterwards."""
    if not state.local:
        return allreduce_hook(state.group, bucket)
    values = bucket.buffer()
    future = _future_of(values)
    future.set_result(values)
    return future


def _future_of(values: torch.Tensor) -> torch.futures.Future[torch.Tensor]:
    return torch.futures.Future(devices=[values.device] if values.is_cuda else None)
