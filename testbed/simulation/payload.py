"""What a round moves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from testbed.plan import PLAIN_CODEC, Plan

#: The way from one member to another, of means or else of partial sums.
Way = tuple[str, str, bool]


@dataclass(frozen=True, slots=True)
class Payload:
    """A tensor of so many `bytes` at each member; of them travels on each way the part `coded`, or all of it."""

    bytes: int
    coded: Mapping[Way, float] = field(default_factory=dict)


def typical(plan: Plan, number: int, elements: int) -> Payload:
    """A tensor of float32 through the codecs that a plan names, as many bytes as they say themselves."""
    if plan.codec == PLAIN_CODEC and not plan.link_codecs:
        return Payload(4 * elements)
    coded: dict[Way, float] = {}
    for group in [plan.whole] if plan.among_all(number) else plan.groups:
        for tree in group.trees:
            ups = {pair: _part(plan, *pair) for pair in tree.reduce.items()}
            downs = {(parent, child): _part(plan, parent, child) for child, parent in tree.broadcast.items()}
            coded |= {(*pair, False): part for pair, part in ups.items()}
            coded |= dict.fromkeys(((*pair, True) for pair in downs), min(downs.values(), default=1.0))
    return Payload(4 * elements, {way: part for way, part in coded.items() if part != 1})


def _part(plan: Plan, source: str, target: str) -> float:
    from testbed.sync.codecs import PLAIN, by_name  # loads PyTorch, which rounds without codecs need not

    elements = plan.chunk_bytes // 4
    return min(by_name(plan.codec_of(source, target)).size(elements) / PLAIN.size(elements), 1.0)
