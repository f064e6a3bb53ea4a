"""Options of schemes whose members take steps of their own between exchanges."""

from __future__ import annotations

from dataclasses import dataclass

from testbed.schemes.options import Options, limited


@dataclass(frozen=True)
class LocalSteps(Options):
    """`every` local steps to a round, at the fastest member."""

    every: int = limited(8, ge=1)

    @property
    def local_steps(self) -> int:
        return self.every
