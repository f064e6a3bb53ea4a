"""The CPN framework's hybrid with a period and a phase of each group's own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from testbed.schemes.options import NESTEROV, LocalSteps, Misfit, OuterOptions, limited
from testbed.schemes.scheme import Scheme

#: Codecs that do not depend on what else is in a chunk, nor leave a part of it for later.
CODECS = ("fp32", "fp16", "bf16")


@dataclass(frozen=True)
class StaggeredOptions(LocalSteps):
    """`every` local steps to a round at the fastest worker; groups wait for no exchange that is up to `staleness`
    rounds overdue. `outer`, `prox` and `normalise` are the hybrid's."""

    outer: OuterOptions = NESTEROV
    prox: float = limited(0.0, ge=0, lt=1)
    normalise: bool = True
    staleness: int = limited(0, ge=0, le=10_000)

    @property
    def for_planning(self) -> Mapping[str, Any]:
        # What members of a group send each other does not go through the codec.
        return {**super().for_planning, "temporal": True, "groups": "sites"}

    def check_plan(self, policy: str, policy_options: Mapping[str, Any], codec: str) -> None:
        if policy != "cpn":
            raise Misfit("policy", f"{policy} plans no periods for single groups", "`policy: cpn`")
        if codec not in CODECS:
            raise Misfit("codec", f"{codec} is for changes; here parameters travel", " or ".join(CODECS))
        if policy_options.get("codecs"):
            raise Misfit("options.codecs", "one codec is everybody's here", "`codec: fp16` in its place")
        if policy_options.get("spatial") == "spread":
            raise Misfit("options.spatial", "leaders have no trees here", "leader or sharded")
        if policy_options.get("overlap"):
            raise Misfit("options.overlap", "exchanges do not go on beside steps here", "leave it out")


SCHEME = Scheme(
    name="staggered",
    options=StaggeredOptions,
    exchange="gossip",
    planned=True,
    synchronous=False,
    source="the CPN framework, JICN 2025, 10.64509/jicn.12.39: redistribution in time",
)
