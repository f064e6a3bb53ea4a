"""A scheme around a training loop that stays as it is."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from importlib import import_module
from typing import Any

import torch
from torch import nn

from testbed.sync.session import Session
from testbed.sync.strategies import Strategy


def wrap(
    model: nn.Module,
    optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer],
    scheme: str = "diloco",
    *,
    session: Session | None = None,
    weight: float = 1.0,
    **options: Any,
) -> AbstractContextManager[Strategy]:
    """Have members train together by a scheme, with its options as an experiment's `sync` has them.

        with sync.wrap(model, optimizer, scheme="diloco", every=32):
            ...                                                     # the training loop, unchanged

    Joins the run that the environment says (see `testbed.sync.environment`), unless it is given a `session`; leaving
    has all members end with the same parameters. Members begin with the same, and take equally many steps. Gradients
    may be accumulated, scaled by a GradScaler and clipped, and learning rates scheduled. Several optimizers step in
    turn, each once in a step of the training.

    Where the model is, or has in it, a DistributedDataParallel, that exchanges neither gradients nor buffers inside;
    afterwards it does again. Buffers, such as BatchNorm's running means, stay each member's own.

    On entering, ValueError where something does not go with the scheme, by its name and with what to write instead,
    and what `join` raises; SyncError where members do not begin alike. Inside, `optimizer.step()` raises the SyncError
    of a round that failed.
    """
    # Schemes are built on this room, which therefore does not know them until it is asked for one.
    context: AbstractContextManager[Strategy] = import_module("testbed.schemes.wrapped").wrapped(
        model, optimizer, scheme, options, session, weight
    )
    return context
