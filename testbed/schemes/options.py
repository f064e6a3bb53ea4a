"""The parts of schemes' options: dataclasses that check themselves, so that files and programs meet the same rules.

Nothing here loads more than the standard library.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from math import isinf
from operator import ge, gt, le, lt
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeVar, get_args, get_origin, get_type_hints

if TYPE_CHECKING:
    from testbed.sync import Nesterov

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
    """Declare a field for a number within limits: `gt`, `ge`, `lt`, `le`, as pydantic names them.

    Args:
        default: The field's default. Without it the field is required.
        limits: The bounds by name.
    """
    return field(default=default, metadata=limits)


@dataclass(frozen=True)
class Checked:
    """A dataclass that raises Misfit where a number is outside its field's limits."""

    def __post_init__(self) -> None:
        for its in fields(self):
            value = getattr(self, its.name)
            if value is not None:
                _check(its.name, value, its.metadata)


def _check(name: str, value: Any, limits: Mapping[str, Any]) -> None:
    if limits and isinstance(value, float) and isinf(value):  # `above 0` has no other end
        raise Misfit(name, f"is {value}", "a finite number")
    for limit, bound in limits.items():
        holds, words = _LIMITS[limit]
        if not holds(value, bound):
            raise Misfit(name, f"is {value}", f"{words} {bound}")


def read(kind: type[C], value: Mapping[str, Any]) -> C:
    """Make the dataclass `kind` from plain values, such as those of a file.

    Raises:
        Misfit: A value breaks its field's rule.
        TypeError: The dataclass has no such field.
    """
    hints = get_type_hints(kind)
    return kind(**{name: _made(name, hints.get(name), its) for name, its in value.items()})


def _made(name: str, hint: Any, value: Any) -> Any:
    inner = next((one for one in (hint, *get_args(hint)) if isinstance(one, type) and issubclass(one, Checked)), None)
    made = read(inner, value) if inner and isinstance(value, Mapping) else value
    if hint is not None and not _has_type(hint, made):
        raise Misfit(name, f"is {value!r}", _values_in_words(hint))
    return made


def _has_type(hint: Any, value: Any) -> bool:
    """Return whether a value has a field's type. An int is a float here; True and False are neither."""
    if get_origin(hint) is Literal:
        return value in get_args(hint)
    if one_of := get_args(hint):
        return any(_has_type(one, value) for one in one_of)
    if hint in (int, float):
        return isinstance(value, int if hint is int else (int, float)) and not isinstance(value, bool)
    return isinstance(value, hint)


def _values_in_words(hint: Any) -> str:
    """Return in words which values a field takes."""
    parts = (hint, *get_args(hint))
    if words := [word for one in parts if get_origin(one) is Literal for word in get_args(one)]:
        return " or ".join(words)
    names = {int: "a whole number", float: "a number", bool: "true or false"}
    return next((names[one] for one in parts if one in names), "its own fields, by their names")


@dataclass(frozen=True)
class Options(Checked):
    """The options of one scheme, beside those that all schemes have.

    A field has the name that a file uses under `sync`. The properties tell planning and checks what follows from the
    options.
    """

    #: Whether every round must be among all members, because a difference between groups would stay for good;
    #: the same whatever the options are.
    among_all: ClassVar[bool] = False

    @property
    def exact(self) -> bool:
        """True if each step uses the mean of all members' gradients, uncompressed."""
        return False

    @property
    def local_steps(self) -> int:
        """The most steps that the fastest member takes in a round."""
        return 1

    @property
    def parts(self) -> int:
        """The number of rounds in which the whole model is sent once."""
        return 1

    @property
    def overlaps(self) -> bool:
        """True if members take the next steps while a round is reduced."""
        return False

    @property
    def covered(self) -> float:
        """The part of the steps between two rounds that members take while the first of them is reduced."""
        return float(self.overlaps)

    @property
    def round_share(self) -> float:
        """The fraction of the model that one round sends."""
        return 1 / self.parts

    @property
    def cycle(self) -> int:
        """The number of rounds after which their sizes repeat."""
        return self.parts

    @property
    def uneven(self) -> bool:
        """True if rounds send different numbers of values, so that no one bound holds for the time of each."""
        return False

    @property
    def site_period(self) -> int:
        """The number N such that each Nth round is among all members and the others are inside sites; 1: all are.

        The number does not apply to a policy that makes groups itself.
        """
        return 1

    @property
    def for_planning(self) -> Mapping[str, Any]:
        """The options for a policy that plans by the members' computing power, by name."""
        return {"every": self.local_steps, "temporal": False, "overlap": self.overlaps}

    @property
    def gap(self) -> Mapping[str, Any]:
        """The arguments of `planning.gaps.gap_bounds` that bound how many iterations members get apart."""
        return {}

    def check_graph(self, fewest: int) -> None:
        """Raise Misfit if the options need more in-neighbours than `fewest`, the least that any member has."""

    def check_plan(self, policy: str, policy_options: Mapping[str, Any], codec: str) -> None:
        """Check that the options go with the policy, its options and the codec.

        Raises:
            Misfit: They do not; names the field of `sync` to change.
        """
        if self.among_all and policy == "cpn":
            raise Misfit("policy", "cpn plans rounds inside groups, and this scheme has none", "`policy: auto`")
        if self.among_all and policy == "hips" and policy_options.get("period", 1) != 1:
            raise Misfit("options.period", "it makes rounds inside sites, and this scheme has none", "leave it out")
        if policy == "cpn" and policy_options.get("temporal"):
            raise Misfit("options.temporal", "all groups have one period here", "`strategy: staggered`")

    def check_elastic(self) -> None:
        """Raise Misfit where members under these options could not be lost and come back."""


@dataclass(frozen=True)
class LocalSteps(Options):
    """Options of a scheme whose members take local steps between rounds."""

    #: Local steps of the fastest member in a round.
    every: int = limited(8, ge=1)

    @property
    def local_steps(self) -> int:
        """The most local steps that the fastest member takes in a round: the option `every`."""
        return self.every


@dataclass(frozen=True)
class OuterOptions(Checked):
    """The outer optimizer: SGD with Nesterov momentum on the members' mean change.

    The defaults are those of DiLoCo's authors (arXiv 2311.08105).
    """

    #: The outer learning rate (α).
    learning_rate: float = limited(0.7, gt=0)
    #: The outer momentum (μ).
    momentum: float = limited(0.9, ge=0, lt=1)

    @property
    def optimizer(self) -> Nesterov:
        """The outer optimizer itself."""
        from testbed.sync import Nesterov

        return Nesterov(self.learning_rate, self.momentum)


#: The outer optimizer that DiLoCo's authors use.
NESTEROV = OuterOptions()

#: The families of graphs that can be made of any number of workers.
GraphKind = Literal["ring", "ring-based", "double-ring", "exponential", "torus", "complete"]

#: The number of the network's fastest pairs that each member keeps by default.
DEGREE = 3


@dataclass(frozen=True)
class InGraph(Options):
    """Options of a scheme whose members have neighbours in a communication graph."""

    #: A family of graphs, or `network`: the fastest pairs of the network.
    graph: Literal[GraphKind, "network"] = "ring"
    #: Fastest pairs that each member keeps; for `network` alone, by default 3 (DEGREE).
    degree: int | None = limited(None, ge=2)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.degree is not None and self.graph != "network":
            raise Misfit("degree", f"the graph {self.graph} has degrees of its own", "`graph: network`")
