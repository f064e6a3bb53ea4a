"""The synchronization library: needs PyTorch, a controller's socket, and nothing else of this package.

with sync.join(control="unix:/run/testbed/control.sock", name="paris-w0") as session:
    with session.local_sgd(model, optimizer, every=8, outer=sync.Nesterov(0.7, 0.9)):
        ...                                                     # the training loop, unchanged
    session.allreduce(tensor, weight=samples)                   # the primitive

with sync.wrap(model, optimizer, scheme="diloco", every=32):    # any scheme that reduces in rounds
    ...                                                         # the training loop, unchanged
"""

from __future__ import annotations

from testbed.sync.allreduce import RoundResult
from testbed.sync.around import wrap
from testbed.sync.checkpoint import Checkpoint, load
from testbed.sync.codecs import Residual
from testbed.sync.errors import CheckpointError, FrameError, Stopped, SyncError
from testbed.sync.executor import Work
from testbed.sync.outer import Average, Nesterov, Outer
from testbed.sync.session import Session, join
from testbed.sync.strategies import PowerSgd, Strategy

__all__ = [
    "Average",
    "Checkpoint",
    "CheckpointError",
    "FrameError",
    "Nesterov",
    "Outer",
    "PowerSgd",
    "Residual",
    "RoundResult",
    "Session",
    "Stopped",
    "Strategy",
    "SyncError",
    "Work",
    "join",
    "load",
    "wrap",
]
