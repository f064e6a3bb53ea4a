"""The rule of atomic rounds: what becomes of a round that a member was lost in. Pure.

A slice that anyone holds final is broadcast again as it is, so that who used it and who did not yet end up with the
same; only slices that nobody holds are reduced again, among the survivors. All of them reckon it from the same
holdings, so they agree without another word.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from testbed.protocol import Holding
from testbed.sync.allreduce import spans
from testbed.sync.allreduce.spans import Spans


@dataclass(frozen=True, slots=True)
class RecoveryOrders:
    """What a survivor does about `round`, the first one that is not over everywhere.

    With `anew` nobody holds anything of it: it begins as if it had never begun. Else this member asks others for the
    elements of `fetch` (member, start, stop), and `left`, which nobody holds, are reduced among all. Both are empty
    for whom the round is over.
    """

    round: int
    anew: bool
    left: Spans
    fetch: tuple[tuple[str, int, int], ...]

    @property
    def reduces(self) -> bool:
        """Whether there is something to reduce in the round."""
        return self.anew or bool(self.left)


def orders_for(member: str, holdings: Sequence[Holding]) -> RecoveryOrders:
    """What `member` does, by what all survivors hold, itself among them.

    Nobody can be two rounds ahead of another: a round needs everybody's update. Who is in a later round holds this
    one whole. Who is not in this one yet has not contributed to it, so nobody then holds any of it: what it holds is of
    the round before.
    """
    first = {holding.member: holding.round + holding.over for holding in holdings}
    number = min(first.values())
    final = {its.member: spans.union(its.final) for its in holdings if its.round == number and not its.over}
    elements = max((its.elements for its in holdings if its.member in final), default=0)
    whole: Spans = ((0, elements),) if elements else ()
    held = {name: whole if first[name] > number else final.get(name, ()) for name in first}
    anywhere = spans.union(span for its in held.values() for span in its)
    if not anywhere:
        return RecoveryOrders(number, True, (), ())
    if first[member] > number:
        return RecoveryOrders(number, False, (), ())
    return RecoveryOrders(
        number, False, spans.minus(whole, anywhere), _fetch(member, spans.minus(anywhere, held[member]), held)
    )


def _fetch(member: str, missing: Spans, held: Mapping[str, Spans]) -> tuple[tuple[str, int, int], ...]:
    """From whom to get what is missing: each member begins with another one, so that the asked share the work."""
    names = sorted(held)
    begin = names.index(member)
    fetch = []
    for name in names[begin + 1 :] + names[:begin]:
        fetch += [(name, start, stop) for start, stop in spans.both(missing, held[name])]
        missing = spans.minus(missing, held[name])
    return tuple(fetch)
