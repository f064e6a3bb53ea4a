"""What `sync` says of how members synchronize: a strategy, what it takes, and what it goes by."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from testbed.spec.decentralized import DECENTRALIZED, DECENTRALIZED_FIELDS, Decentralized, DecentralizedSync
from testbed.spec.load import Strict, misfit
from testbed.spec.units import Duration


class Outer(Strict):
    """DiLoCo's outer optimizer: SGD with Nesterov momentum on the members' mean change."""

    learning_rate: float = Field(default=0.7, gt=0)
    momentum: float = Field(default=0.9, ge=0, lt=1)


Reduction = Literal["gradients", "local_sgd", "post_local_sgd", "diloco", "hierarchical", "hybrid"]
Strategy = Literal[Reduction, Decentralized]
REDUCTIONS: frozenset[str] = frozenset(Reduction.__args__)  # type: ignore[attr-defined]

#: Those in which a policy plans who exchanges with whom.
PLANNED = REDUCTIONS | {"staggered"}

#: The fields of `sync` that belong to some strategies only.
STRATEGY_FIELDS: Mapping[str, frozenset[str]] = {
    "policy": PLANNED,
    "options": PLANNED,
    "codec": PLANNED,
    "link_codecs": REDUCTIONS,
    **DECENTRALIZED_FIELDS,
    "every": frozenset(("local_sgd", "post_local_sgd", "diloco", "hierarchical", "hybrid", "fedasync", "staggered")),
    "start": frozenset(("post_local_sgd",)),
    "period": frozenset(("hierarchical", "hybrid")),
    "fragments": frozenset(("diloco",)),
    "delay": frozenset(("diloco",)),
    "outer": frozenset(("diloco", "hybrid", "staggered")),
    "prox": frozenset(("hybrid", "staggered")),
    "normalise": frozenset(("hybrid", "staggered")),
    "overlap": frozenset(("hybrid",)),
    "powersgd_rank": frozenset(("gradients",)),
}

#: Each stream costs both ends a thread; on paths that lose packets little is gained beyond eight.
MOST_STREAMS = 16

#: Bytes that codecs make of a float32's four. `topk:SHARE` takes six for each value that it keeps.
CODEC_BYTES = {"fp32": 4.0, "fp16": 2.0, "bf16": 2.0, "int8": 1 + 4 / 256}
TOPK = re.compile(r"topk:(0?\.\d+)")
TOPK_BYTES = 6

#: Codecs that do not depend on what else is in a chunk, nor leave a part of it for later.
STAGGERED_CODECS = ("fp32", "fp16", "bf16")


class Sync(DecentralizedSync):
    """How members synchronize: by a strategy, over the plans of a policy, through a codec; or without a centre.

    `every` local steps to a round; `post_local_sgd` begins with `start` steps by gradients; `hierarchical` reduces
    inside sites but in every `period`-th round, which is among all; `hybrid` does so with as many steps as each
    worker's speed allows, `every` at the fastest, evened out (`normalise`) and held back (`prox`), or with rounds that
    go on beside the next one's steps (`overlap`); `staggered` is the hybrid with a period and a phase of each group's
    own, which wait for no exchange that is up to `staleness` rounds overdue; `diloco` may stream the model in
    `fragments`, with `delay` steps for each to be reduced in.

    `link_codecs` are those of what members of one site send to another's, by `paris->tokyo`. `streams` connections go
    to each next hop, under the `congestion` control of that name, or the kernel's default.
    """

    strategy: Strategy = "gradients"
    every: int = Field(default=8, ge=1)
    start: int = Field(default=100, ge=1)
    period: int = Field(default=4, ge=1)
    fragments: int = Field(default=1, ge=1)
    delay: int = Field(default=0, ge=0)
    outer: Outer = Outer()
    prox: float = Field(default=0.0, ge=0, lt=1)
    normalise: bool = True
    overlap: bool = False
    powersgd_rank: int | None = Field(default=None, ge=1)
    codec: str = "fp32"
    link_codecs: dict[str, str] = Field(default_factory=dict)
    streams: int = Field(default=1, ge=1, le=MOST_STREAMS)
    congestion: str = Field(default="", pattern=r"^[a-z0-9_]*$")
    policy: str = "auto"
    options: dict[str, Any] = Field(default_factory=dict)
    round_timeout: Duration = Field(default=120.0, ge=1)

    @model_validator(mode="after")
    def _strategy_takes(self) -> Self:
        for name, strategies in STRATEGY_FIELDS.items():
            if name in self.model_fields_set and self.strategy not in strategies:
                raise misfit(name, f"the strategy {self.strategy} has none", f"`strategy: {sorted(strategies)[0]}`")
        if self.every % self.fragments:
            raise misfit("fragments", f"{self.fragments} do not divide {self.every} steps evenly", "a divisor of every")
        if self.delay >= self.every:
            raise misfit("delay", f"{self.delay} steps are not over before the next round", f"below {self.every}")
        if self.overlap and self.prox:
            raise misfit("prox", "rounds that overlap begin from no one place", "one of the two")
        codecs = {"codec": self.codec, **{f"link_codecs.{at}": codec for at, codec in self.link_codecs.items()}}
        for at, codec in codecs.items():
            if codec not in CODEC_BYTES and not TOPK.fullmatch(codec):
                raise misfit(at, f"no such codec: {codec!r}", f"{', '.join(CODEC_BYTES)} or topk:0.01")
            if codec != "fp32" and self.powersgd_rank is not None:
                raise misfit(at, "PowerSGD's factors travel as they are", "one of the two")
        return self

    @model_validator(mode="after")
    def _groups_are_planned(self) -> Self:
        """What groups with periods of their own take."""
        if self.strategy != "staggered":
            if self.policy == "cpn" and self.options.get("temporal"):
                raise misfit("options.temporal", "all groups have one period here", "`strategy: staggered`")
            return self
        if self.policy != "cpn":
            raise misfit("policy", f"{self.policy} plans no periods for single groups", "`policy: cpn`")
        if self.codec not in STAGGERED_CODECS:
            raise misfit("codec", f"{self.codec} is for changes; here parameters travel", " or ".join(STAGGERED_CODECS))
        if self.options.get("codecs"):
            raise misfit("options.codecs", "one codec is everybody's here", "`codec: fp16` in its place")
        if self.options.get("spatial") == "spread":
            raise misfit("options.spatial", "leaders have no trees here", "leader or sharded")
        if self.options.get("overlap"):
            raise misfit("options.overlap", "exchanges do not go on beside steps here", "leave it out")
        return self

    @property
    def decentralized(self) -> bool:
        """Whether members train without a centre."""
        return self.strategy in DECENTRALIZED

    @property
    def alike(self) -> bool:
        """Whether all members end with the same parameters. Staggered groups all exchange in the last round."""
        return not self.decentralized or self.strategy == "staggered"

    @property
    def bytes_per_value(self) -> float:
        """What a number of the model takes on its way."""
        kept = TOPK.fullmatch(self.codec)
        return TOPK_BYTES * float(kept[1]) if kept else CODEC_BYTES[self.codec]
