"""What a policy is, and the registry of those there are: one a file, each importing this."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from typing import Any, ClassVar, TypeVar

from testbed.errors import BAD_INPUT, DetailedError
from testbed.plan import Group, Plan, Route, Tree
from testbed.planning.chunk import choose_chunk
from testbed.planning.view import View


class PolicyError(DetailedError, ValueError):
    """A policy that does not exist, options it does not take, or a view it has no plan for."""

    exit_code = BAD_INPUT


class Policy(ABC):
    """A pure function from a view to a plan. Subclasses are frozen dataclasses whose fields are the options."""

    name: ClassVar[str]
    #: Whether it plans by a view alone: one that needs to be told more is none to choose among by name.
    plans_alone: ClassVar[bool] = True

    @abstractmethod
    def plan(self, view: View) -> Plan:
        """The plan for `view`, with epoch 0: the controller that adopts it numbers it. PolicyError when there is
        none."""

    def replan(self, view: View, last: Plan) -> Plan:
        """The plan for `view` when `last` is in force: the same as `plan`, unless the policy can begin from it."""
        return self.plan(view)

    def proposals(self, view: View, last: Plan) -> list[Plan]:
        """The plans for `view` that are worth judging when `last` is in force, the best guess first."""
        return [self.replan(view, last)]

    def check(self, view: View) -> None:  # noqa: B027 - most can plan for whatever there is
        """PolicyError where it is plain at once that this is no policy for such a view."""

    @property
    def measure(self) -> Callable[[View, Plan], float] | None:
        """What a plan costs under a view by the policy's own measure, by which swaps are then judged; None where that
        is the predicted seconds of a round."""
        return None

    def explain(self, view: View, plan: Plan) -> dict[str, Any]:
        """Why this plan for `view`, in figures; empty where the plan says it all."""
        return {}

    def _plan(
        self,
        view: View,
        trees: Iterable[Tree],
        auxiliary: tuple[Route, ...] = (),
        groups: tuple[Group, ...] = (),
        period: int = 1,
    ) -> Plan:
        """The plan of these, with the chunk size that suits it. PolicyError when an edge in it is not there."""
        trees = tuple(trees)
        for source, target, _ in Group(view.names, trees).edges():
            if (source, target) not in view.edges:
                raise PolicyError(
                    f"{self.name}: its plan needs an edge from {source} to {target}, and there is none",
                    rule="no-edge",
                    link=f"{source}->{target}",
                )
        chunk = choose_chunk(view, trees)
        return Plan(0, view.names, trees, chunk, self.name, auxiliary=auxiliary, groups=groups, period=period)


def check_whole(policy: Policy, option: str, value: object, least: int) -> None:
    """PolicyError unless the option's value is a whole number, `least` or above."""
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise PolicyError(
            f"{policy.name}: {option} {value!r} must be a whole number, at least {least}", field=option, given=value
        )


def check_switch(policy: Policy, option: str, value: object) -> None:
    """PolicyError unless the option's value is true or false."""
    if not isinstance(value, bool):
        raise PolicyError(f"{policy.name}: {option} {value!r} must be true or false", field=option, given=value)


def check_choice(policy: Policy, option: str, value: object, choices: Iterable[str]) -> None:
    """PolicyError unless the option's value is one of `choices`."""
    choices = tuple(choices)
    if value not in choices:
        raise PolicyError(
            f"{policy.name}: {option} {value!r} is none of {', '.join(choices)}", field=option, given=value
        )


def check_member(policy: Policy, option: str, value: str, view: View) -> None:
    """PolicyError unless the option's value is a member."""
    if value not in view.names:
        raise PolicyError(
            f"{policy.name}: {option} {value!r} is not a member; there are: {', '.join(view.names)}",
            field=option,
            given=value,
        )


REGISTRY: dict[str, type[Policy]] = {}

P = TypeVar("P", bound=type[Policy])


def register(name: str) -> Callable[[P], P]:
    """Class decorator: the policy is known by `name`."""

    def enter(cls: P) -> P:
        cls.name = name
        REGISTRY[name] = cls
        return cls

    return enter


def is_own(policy: Policy | type[Policy]) -> bool:
    """Return whether a policy is one of the project's, and not a plug-in."""
    return (policy if isinstance(policy, type) else type(policy)).__module__.startswith("testbed.")


def own_policy_names() -> tuple[str, ...]:
    """Return those of `policy_names` that are the project's own."""
    return tuple(name for name in policy_names() if is_own(REGISTRY[name]))


def policy_names() -> tuple[str, ...]:
    """The policies that plan by a view alone, in alphabetical order."""
    return tuple(sorted(name for name, cls in REGISTRY.items() if cls.plans_alone))


def make_policy(name: str, options: Mapping[str, Any] | None = None) -> Policy:
    """The policy `name` with `options`; PolicyError that lists what is known when either is not."""
    cls = REGISTRY.get(name)
    if cls is None:
        raise PolicyError(f"no policy {name!r}; there are: {', '.join(policy_names())}", field="policy", given=name)
    known = {f.name for f in fields(cls)}  # type: ignore[arg-type]
    if unknown := sorted(set(options or {}) - known):
        raise PolicyError(
            f"policy {name}: no option {', '.join(unknown)}; it takes: {', '.join(sorted(known)) or 'none'}",
            rule="unknown-option",
            given=tuple(unknown),
        )
    return cls(**(options or {}))
