"""DistributedDataParallel's communication hook: gradients are reduced bucket by bucket while backward goes on.

This module alone does without postponed annotations: DDP compares a hook's with the types themselves.
"""

from collections.abc import Callable

import torch
from torch.distributed import GradBucket  # type: ignore[attr-defined]  # public, but not said to be

from testbed.sync.codecs import Residual
from testbed.sync.errors import SyncError
from testbed.sync.executor import Work
from testbed.sync.strategies.strategy import Reduced, Reducer

Hook = Callable[[object, GradBucket], torch.futures.Future[torch.Tensor]]


def hook_of(reducer: Reducer) -> Hook:
    """A hook for `register_comm_hook`, which replaces each bucket's gradients by all members' mean.

    Each member's process group has a world size of 1, DDP itself thus sends nothing. Buckets are reduced in the order
    in which backward fills them; that follows from the model, so it is every member's. Two of them overlap once DDP's
    buckets have the sizes that they keep. A round that fails makes `backward` raise a RuntimeError with the
    SyncError's text; so does one that is not among all, as DDP's copies of the model would part. What codecs leave
    out is kept for each bucket; when DDP arranges its buckets anew, after the first step, that of the old is dropped.
    """
    residuals: dict[int, tuple[int, Residual]] = {}

    def session_hook(state: object, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        values = bucket.buffer()
        size, residual = residuals.get(bucket.index(), (0, Residual()))
        if size != values.numel():
            residual = Residual()
            residuals[bucket.index()] = values.numel(), residual
        future: torch.futures.Future[torch.Tensor] = torch.futures.Future(
            devices=[values.device] if values.is_cuda else None
        )

        def settle(work: Work[Reduced]) -> None:
            try:
                _check_whole(work.wait())
            except Exception as error:  # whatever it is, it must come out where DDP waits
                future.set_exception(error)  # type: ignore[arg-type]  # PyTorch's own annotation is wrong
            else:
                future.set_result(values)

        reducer.allreduce_later(values, 1.0, residual).then(settle)
        return future

    return session_hook


def _check_whole(reduced: Reduced) -> None:
    if not reduced.whole:
        raise SyncError(
            f"round {reduced.round}, epoch {reduced.epoch}: the plan has groups, whose members differ between rounds "
            "among all; DistributedDataParallel needs a plan without, or train with session.local_sgd",
            rule="groups",
            round=reduced.round,
            epoch=reduced.epoch,
        )
