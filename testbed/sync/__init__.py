"""The synchronization library: needs PyTorch, a controller's socket, and nothing else of this package.

with sync.join(control="unix:/run/testbed/control.sock", name="paris-w0") as session:
    for _ in range(session.job.rounds):
        ...
        session.allreduce(gradients, weight=batch)
"""

from __future__ import annotations

from testbed.sync.errors import FrameError, Stopped, SyncError
from testbed.sync.session import RoundResult, Session, join

__all__ = ["FrameError", "RoundResult", "Session", "Stopped", "SyncError", "join"]
