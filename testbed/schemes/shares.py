"""What the options of schemes have that average a random share of the parameters after each step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from testbed.schemes.options import Misfit, Options, limited


@dataclass(frozen=True)
class ShareOptions(Options):
    """The `share` of the parameters that is averaged after each step, as it is."""

    share: float = limited(0.005, gt=0, le=1)

    @property
    def round_share(self) -> float:
        return self.share

    def check_plan(self, policy: str, policy_options: Mapping[str, Any], codec: str) -> None:
        super().check_plan(policy, policy_options, codec)
        if codec != "fp32":
            raise Misfit(
                "codec", f"{codec} leaves something for the next round, which has other places", "`codec: fp32`"
            )
        if policy_options.get("codecs"):
            raise Misfit("options.codecs", "a share of the parameters goes as it is", "leave it out")
