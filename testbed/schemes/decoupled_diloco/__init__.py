"""Decoupled DiLoCo: nobody waits; a syncer merges each fragment of the model when some members' changes are there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from testbed.schemes.options import NESTEROV, Misfit, Options, OuterOptions, limited
from testbed.schemes.scheme import Scheme


@dataclass(frozen=True)
class DecoupledOptions(Options):
    """Each of the `fragments` is merged once in `every` steps of the fastest member, or of the `quorum`-th fastest.

    `overlap` is how many steps a merge may take beside training, `margin` the part of what is left of that after the
    quorum for which the syncer waits for others. `merge` averages directions and lengths apart (`radial`), or changes
    as they are (`mean`). What travels goes through the `codec`: `bins4`, of four bits, is too coarse for parameters, so
    that changes travel both ways under it, and what it leaves out goes with the next ones.

    Defaults are those of arXiv 2604.21428 as others report them (H = P = 24, τ = 2, K = 1); the margin and the outer
    rates, which they do not tell, are ours and DiLoCo's.
    """

    every: int = limited(24, ge=1)
    fragments: int = limited(24, ge=1)
    quorum: int = limited(1, ge=1)
    overlap: int = limited(2, ge=0)
    margin: float = limited(0.5, ge=0, lt=1)
    merge: Literal["radial", "mean"] = "radial"
    outer: OuterOptions = NESTEROV
    codec: Literal["fp32", "fp16", "bf16", "bins4"] = "fp32"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.every % self.fragments:
            raise Misfit("fragments", f"{self.fragments} do not divide {self.every} steps evenly", "a divisor of every")

    @property
    def in_changes(self) -> bool:
        """Whether a merge's result travels as its change."""
        return self.codec == "bins4"

    @property
    def local_steps(self) -> int:
        return self.every

    @property
    def parts(self) -> int:
        return self.fragments


SCHEME = Scheme(
    name="decoupled_diloco",
    options=DecoupledOptions,
    exchange="gossip",
    planned=False,
    synchronous=False,
    elastic=True,
    survives=True,
    source="Douillard et al. 2026, arXiv 2604.21428",
)
