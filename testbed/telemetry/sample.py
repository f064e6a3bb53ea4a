"""What one train says of a link that it passed."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Sample:
    """Bit/s of frames that a link carried from `began_s` on for `seconds` (Unix time), and the bytes of the train
    behind it. A link that was `full` carries no more; others carry at least that."""

    rate_bps: float
    began_s: float
    seconds: float
    bytes: int
    full: bool

    @property
    def ended_s(self) -> float:
        """When the train's last packet came."""
        return self.began_s + self.seconds
