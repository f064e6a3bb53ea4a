"""The errors of a session. Their fields name the peer (`member`), the plan's `epoch` and the `round`."""

from __future__ import annotations

from testbed.errors import DetailedError


class SyncError(DetailedError, RuntimeError):
    """A round failed, or a session could not begin."""


class Stopped(SyncError):
    """The controller told this member to leave.

    Attributes:
        again: True if the member may join again while the other members go on training.
    """

    def __init__(self, reason: str, again: bool = False) -> None:
        super().__init__(reason)
        self.again = again


class CheckpointError(SyncError):
    """A file is not a checkpoint, holds other parts than were asked for, or has a state that does not fit its part.

    Or a state can't be saved, because it holds more than tensors and plain values.
    """


class Halted(SyncError):
    """A member was lost: the current round is recovered, or begun again, among the members that are left."""


class FrameError(SyncError):
    """A peer sent bytes that no correct member sends under the plans that this member holds."""


class ImpostorError(FrameError):
    """A peer uses a member's name without that member's key or certificate."""
