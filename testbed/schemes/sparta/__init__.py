"""SPARTA: after each step the members average a random share of the parameters, the same elements at all of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from testbed.schemes.options import Misfit, Options, limited
from testbed.schemes.outer import NESTEROV, OuterOptions
from testbed.schemes.scheme import Scheme


@dataclass(frozen=True)
class SpartaOptions(Options):
    """The `share` of the parameters that is averaged after each step; with `every`, DiLoCo goes on beside that, with a
    round of the whole model each so many steps."""

    share: float = limited(0.005, gt=0, le=1)
    every: int | None = limited(None, ge=1)
    outer: OuterOptions = NESTEROV

    @property
    def round_share(self) -> float:
        return self.share if self.every is None else (self.every * self.share + 1) / (self.every + 1)

    def check_plan(self, policy: str, policy_options: Mapping[str, Any], codec: str) -> None:
        super().check_plan(policy, policy_options, codec)
        if codec != "fp32":
            raise Misfit(
                "codec", f"{codec} leaves something for the next round, which has other places", "`codec: fp32`"
            )
        if policy_options.get("codecs"):
            raise Misfit("options.codecs", "a share of the parameters goes as it is", "leave it out")


SCHEME = Scheme(
    name="sparta",
    options=SpartaOptions,
    exchange="all-reduce",
    planned=True,
    source="EXO Labs 2025, SPARTA in exo gym; second-hand, no paper",
)
