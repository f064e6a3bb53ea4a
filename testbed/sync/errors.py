"""The errors of a session. Each names in its fields the peer as `member`, the epoch and the round."""

from __future__ import annotations

from testbed.errors import DetailedError


class SyncError(DetailedError, RuntimeError):
    """A round could not be finished, or a session not begun."""


class Stopped(SyncError):
    """The controller asked this member to leave; with `again` it may join once more, while the others train on."""

    def __init__(self, reason: str, again: bool = False) -> None:
        super().__init__(reason)
        self.again = again


class CheckpointError(SyncError):
    """A file that is no checkpoint, or one of something else."""


class Halted(SyncError):
    """A member was lost: the round that is on is recovered, or begun anew, among those who are left."""


class FrameError(SyncError):
    """Bytes from a peer that no correct member under a plan we hold would have sent."""


class ImpostorError(FrameError):
    """Somebody goes by a member's name, and does not have that member's key."""
