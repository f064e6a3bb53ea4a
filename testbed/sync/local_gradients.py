"""DistributedDataParallel that leaves gradients where they are, for as long as members exchange something else.

Like `ddp.py` this module does without postponed annotations: DDP compares a hook's with the types themselves.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch.distributed import GradBucket  # type: ignore[attr-defined]  # public, but not said to be
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel


class LocalGradients:
    """A model whose gradients stay local until `exchange`, when DDP takes their mean again, as it would without this.

    DDP takes one communication hook in its life, so this one stays in it. ValueError where it has another one already.
    """

    def __init__(self, model: DistributedDataParallel) -> None:
        try:
            model.register_comm_hook(self, local_hook)
        except RuntimeError as error:
            raise ValueError(
                f"this DistributedDataParallel has a communication hook of its own, and takes no second: {error}. "
                "Leave out its register_comm_hook, and wrap a model once"
            ) from error
        self._model = model
        self._syncs_buffers = model.forward_sync_buffers
        self.local = True
        model.forward_sync_buffers = False

    def __str__(self) -> str:
        told = "DistributedDataParallel exchanges no gradients and no buffers"
        if self._model.find_unused_parameters:
            told += (
                "; but find_unused_parameters=True has it ask all ranks in each backward pass which parameters were "
                "used, 4 bytes for each and a round trip: leave it out where all are"
            )
        return told

    @property
    def group(self) -> torch.distributed.ProcessGroup:
        """Of the model's ranks."""
        return self._model.process_group

    def exchange(self) -> None:
        """Have DDP exchange gradients and buffers from now on."""
        self.local = False
        self._model.forward_sync_buffers = self._syncs_buffers


def local_hook(state: LocalGradients, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    """A bucket as it is, while its model's gradients are local."""
    if not state.local:
        return allreduce_hook(state.group, bucket)
    values = bucket.buffer()
    future: torch.futures.Future[torch.Tensor] = torch.futures.Future(
        devices=[values.device] if values.is_cuda else None
    )
    future.set_result(values)
    return future


@contextmanager
def local_gradients(model: DistributedDataParallel) -> Iterator[LocalGradients]:
    """A model's gradients are local while inside."""
    local = LocalGradients(model)
    try:
        yield local
    finally:
        local.exchange()
