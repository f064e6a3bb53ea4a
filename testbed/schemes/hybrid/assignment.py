"""The hybrid's local steps by each worker's speed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from testbed.planning.view import Member
from testbed.schemes.assignment import Assignment, Setting
from testbed.schemes.hybrid import HybridOptions


@dataclass(frozen=True)
class Unequal(Assignment):
    """So many `steps` to a round, by member: every member is told its own and all of them."""

    steps: Mapping[str, int]

    def of(self, member: str) -> dict[str, Any]:
        return {"every": self.steps[member], "steps": tuple(self.steps.values())}


def assign(options: HybridOptions, setting: Setting) -> Unequal:
    """Every member's local steps to a round, if the plan has none."""
    members = setting.view.members
    return Unequal(dict(zip(setting.view.names, steps_of(members, options.every), strict=True)))


def steps_of(members: Sequence[Member], every: int) -> tuple[int, ...]:
    """Each member's local steps to a round: `every` at the fastest, the others in proportion, so that all are done at
    about the same time; at least one."""
    fastest = max(member.speed for member in members)
    return tuple(max(1, round(every * member.speed / fastest)) for member in members)
