"""What a round moves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from testbed.plan import Plan
from testbed.sync.allreduce.role import role_in
from testbed.sync.codecs import PLAIN, Codec

#: The way from one member to another, of means or else of partial sums.
Way = tuple[str, str, bool]


@dataclass(frozen=True, slots=True)
class Payload:
    """A tensor of so many `bytes` at each member; of them travels on each way the part `coded`, or all of it."""

    bytes: int
    coded: Mapping[Way, float] = field(default_factory=dict)


def typical(plan: Plan, number: int, elements: int) -> Payload:
    """A tensor of float32 through the codecs that a plan names, as many bytes as they say themselves."""
    coded: dict[Way, float] = {}
    for group in [plan.whole] if plan.among_all(number) else plan.groups:
        for member in group.members:
            for role in role_in(plan, group, member).trees:
                if role.partials_to is not None:
                    coded[member, role.partials_to, False] = _part(role.partial_codec, plan.chunk_bytes)
                coded |= {(member, child, True): _part(role.mean_codec, plan.chunk_bytes) for child in role.mean_to}
    return Payload(4 * elements, {way: part for way, part in coded.items() if part != 1})


def _part(codec: Codec, chunk_bytes: int) -> float:
    elements = chunk_bytes // 4
    return min(codec.size(elements) / PLAIN.size(elements), 1.0)
