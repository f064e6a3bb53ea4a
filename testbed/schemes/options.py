"""What a scheme's options are made of: plain dataclasses that check themselves, so that a file and a caller meet the
same rules. Nothing here loads more than the standard library."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from operator import ge, gt, le, lt
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

C = TypeVar("C", bound="Checked")

#: Limits by their names: the test that a value must pass, and how the remedy words it.
_LIMITS = {"gt": (gt, "a number above"), "ge": (ge, "at least"), "lt": (lt, "a number below"), "le": (le, "at most")}


class Misfit(ValueError):
    """An option that breaks a rule: the field's name, the rule, and what to write instead."""

    def __init__(self, name: str, problem: str, remedy: str) -> None:
        super().__init__(f"{name}: {problem}; write instead: {remedy}")
        self.name = name
        self.problem = problem
        self.remedy = remedy


def limited(default: Any = MISSING, **limits: float) -> Any:
    """A field of a number within limits: `gt`, `ge`, `lt`, `le`, as pydantic names them. Required without default."""
    return field(default=default, metadata=limits)


@dataclass(frozen=True)
class Checked:
    """A dataclass whose numbers are within their fields' limits; Misfit where one is not."""

    def __post_init__(self) -> None:
        for its in fields(self):
            value = getattr(self, its.name)
            if value is not None:
                _check(its.name, value, its.metadata)


def _check(name: str, value: Any, limits: Mapping[str, Any]) -> None:
    for limit, bound in limits.items():
        holds, words = _LIMITS[limit]
        if not holds(value, bound):
            raise Misfit(name, f"is {value}", f"{words} {bound}")


def read(kind: type[C], value: Mapping[str, Any]) -> C:
    """The dataclass that plain values say. Misfit where they break a rule, TypeError where there is no such field."""
    hints = get_type_hints(kind)
    return kind(**{name: _made(name, hints.get(name), its) for name, its in value.items()})


def _made(name: str, hint: Any, value: Any) -> Any:
    inner = next((one for one in (hint, *get_args(hint)) if isinstance(one, type) and issubclass(one, Checked)), None)
    made = read(inner, value) if inner and isinstance(value, Mapping) else value
    if hint is not None and not _is(hint, made):
        raise Misfit(name, f"is {value!r}", _said(hint))
    return made


def _is(hint: Any, value: Any) -> bool:
    """Whether a value is of a field's type. A whole number is a real one; True and False are neither."""
    if get_origin(hint) is Literal:
        return value in get_args(hint)
    if one_of := get_args(hint):
        return any(_is(one, value) for one in one_of)
    if hint in (int, float):
        return isinstance(value, int if hint is int else (int, float)) and not isinstance(value, bool)
    return isinstance(value, hint)


def _said(hint: Any) -> str:
    """What a field takes, in words."""
    parts = (hint, *get_args(hint))
    if words := [word for one in parts if get_origin(one) is Literal for word in get_args(one)]:
        return " or ".join(words)
    names = {int: "a whole number", float: "a number", bool: "true or false"}
    return next((names[one] for one in parts if one in names), "its own fields, by their names")


@dataclass(frozen=True)
class Options(Checked):
    """What a scheme takes beside what all schemes take. Fields have the names that a file has under `sync`."""

    @property
    def exact(self) -> bool:
        """Whether each step takes the mean of all members' gradients as they are."""
        return False

    @property
    def among_all(self) -> bool:
        """Whether every round must be among all members: what differs between groups would stay apart for good."""
        return False

    @property
    def local_steps(self) -> int:
        """Steps to a round at most, of the fastest member."""
        return 1

    @property
    def parts(self) -> int:
        """In how many rounds the whole model is sent once."""
        return 1

    @property
    def overlaps(self) -> bool:
        """Whether members take steps while a round is on."""
        return False

    @property
    def round_share(self) -> float:
        """The part of the model that a round sends."""
        return 1 / self.parts

    @property
    def site_period(self) -> int:
        """Each so many-th round is among all, the others inside sites; where the policy makes no groups itself."""
        return 1

    @property
    def for_planning(self) -> Mapping[str, Any]:
        """What a policy that plans with computing power is told of it, as its options."""
        return {"every": self.local_steps, "temporal": False, "overlap": False}

    @property
    def gap(self) -> Mapping[str, Any]:
        """What bounds how far members get apart, as `planning.graphs.gap_bounds` takes it."""
        return {}

    def check_graph(self, fewest: int) -> None:
        """Misfit where a graph in which some member has no more than `fewest` in-neighbours is not for the options."""

    def check_plan(self, policy: str, policy_options: Mapping[str, Any], codec: str) -> None:
        """Misfit, with a field of `sync`, where the options do not go with how exchanges are planned."""
        if self.among_all and policy == "cpn":
            raise Misfit("policy", "cpn plans rounds inside groups, and here each must be among all", "`policy: auto`")
        if self.among_all and policy == "hips" and policy_options.get("period", 1) != 1:
            raise Misfit("options.period", "rounds inside sites, and here each must be among all", "leave it out")
        if policy == "cpn" and policy_options.get("temporal"):
            raise Misfit("options.temporal", "all groups have one period here", "`strategy: staggered`")

    def check_elastic(self) -> None:
        """Misfit where members under these options could not be lost and come back."""
