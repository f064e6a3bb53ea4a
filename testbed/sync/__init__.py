"""The synchronization library: it needs PyTorch, a controller's socket, and no other part of the testbed.

    with sync.join(control="unix:/run/testbed/control.sock", name="paris-w0") as session:
        with session.local_sgd(model, optimizer, every=8, outer=sync.Nesterov(0.7, 0.9)):
            ...                                                     # the training loop, unchanged
        session.allreduce(tensor, weight=samples)                   # the primitive
        work = session.allreduce(tensor, async_op=True)             # the same, while the caller goes on
        work.wait()

A public name is loaded at its first use, because other rooms read constants of this one without PyTorch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from testbed.lazy import lazy_names

if TYPE_CHECKING:
    from testbed.sync.allreduce import RoundResult as RoundResult
    from testbed.sync.checkpoint import Checkpoint as Checkpoint
    from testbed.sync.checkpoint import load as load
    from testbed.sync.codecs import Residual as Residual
    from testbed.sync.errors import CheckpointError as CheckpointError
    from testbed.sync.errors import FrameError as FrameError
    from testbed.sync.errors import Stopped as Stopped
    from testbed.sync.errors import SyncError as SyncError
    from testbed.sync.executor import Work as Work
    from testbed.sync.session import Session as Session
    from testbed.sync.session import join as join
    from testbed.sync.strategies import PowerSgd as PowerSgd
    from testbed.sync.strategies import Strategy as Strategy
    from testbed.sync.strategies.periodic import Average as Average
    from testbed.sync.strategies.periodic import Nesterov as Nesterov
    from testbed.sync.strategies.periodic import Outer as Outer

_MODULES = {
    "Average": "testbed.sync.strategies.periodic",
    "Checkpoint": "testbed.sync.checkpoint",
    "CheckpointError": "testbed.sync.errors",
    "FrameError": "testbed.sync.errors",
    "Nesterov": "testbed.sync.strategies.periodic",
    "Outer": "testbed.sync.strategies.periodic",
    "PowerSgd": "testbed.sync.strategies",
    "Residual": "testbed.sync.codecs",
    "RoundResult": "testbed.sync.allreduce",
    "Session": "testbed.sync.session",
    "Stopped": "testbed.sync.errors",
    "Strategy": "testbed.sync.strategies",
    "SyncError": "testbed.sync.errors",
    "Work": "testbed.sync.executor",
    "join": "testbed.sync.session",
    "load": "testbed.sync.checkpoint",
}

__all__ = [*_MODULES]

_load, __dir__ = lazy_names(__name__, _MODULES)


def __getattr__(name: str) -> Any:
    if name == "wrap":
        raise ImportError("`sync.wrap` is now `schemes.wrap`: write `from testbed import schemes`")
    return _load(name)
