"""NoLoCo: local steps, and then an outer step with one other member, drawn anew each time, in place of all of them."""

from __future__ import annotations

from dataclasses import dataclass

from testbed.schemes.options import Misfit, Options, limited
from testbed.schemes.scheme import Scheme


@dataclass(frozen=True)
class NoLoCoOptions(Options):
    """`every` local steps to an outer one, which goes by a `learning_rate` and a `momentum`."""

    every: int = limited(50, ge=1)
    learning_rate: float = limited(0.7, gt=0)
    momentum: float = limited(0.5, ge=0, lt=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        # Where members stand is drawn together by as much: at 0.7 with a momentum of 0.9 eight of them went from 1
        # to 9,437 apart in 400 outer steps, without any gradient.
        most = 2 * (1 - self.momentum**2)
        if self.learning_rate >= most:
            raise Misfit("learning_rate", f"members drift apart at a momentum of {self.momentum}", f"below {most:.2g}")

    @property
    def local_steps(self) -> int:
        return self.every


SCHEME = Scheme(
    name="noloco",
    options=NoLoCoOptions,
    exchange="gossip",
    planned=False,
    synchronous=False,
    alike=False,
    source="Kolehmainen et al. 2025, arXiv 2506.10911",
)
