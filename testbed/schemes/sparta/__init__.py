"""SPARTA: after each step the members average a random share of the parameters, the same elements at all of them."""

from __future__ import annotations

from dataclasses import dataclass

from testbed.schemes.options import limited
from testbed.schemes.outer import NESTEROV, OuterOptions
from testbed.schemes.scheme import Scheme
from testbed.schemes.shares import ShareOptions


@dataclass(frozen=True)
class SpartaOptions(ShareOptions):
    """The `share` of the parameters that is averaged after each step; with `every`, DiLoCo goes on beside that, with a
    round of the whole model each so many steps."""

    every: int | None = limited(None, ge=1)
    outer: OuterOptions = NESTEROV

    @property
    def round_share(self) -> float:
        return self.share if self.every is None else (self.every * self.share + 1) / (self.every + 1)


SCHEME = Scheme(
    name="sparta",
    options=SpartaOptions,
    exchange="all-reduce",
    planned=True,
    source="EXO Labs 2025, SPARTA in exo gym; second-hand, no paper",
)
