"""LOSCAR: SPARTA whose averages come while the members go on: what they did meanwhile is added to them."""

from __future__ import annotations

from dataclasses import dataclass

from testbed.schemes.options import limited
from testbed.schemes.scheme import Scheme
from testbed.schemes.shares import ShareOptions


@dataclass(frozen=True)
class LoscarOptions(ShareOptions):
    """The `share` of the parameters that is averaged after each step, with `delay` steps' time."""

    delay: int = limited(1, ge=0)

    @property
    def overlaps(self) -> bool:
        return self.delay > 0


SCHEME = Scheme(
    name="loscar",
    options=LoscarOptions,
    exchange="all-reduce",
    planned=True,
    source="arXiv 2605.20866; second-hand",
)
