"""The base class of policies, the checks of their options, and the registry by name.

A policy is one file in `testbed.planning.policies` and one line in its `__init__`, or a file or an installed package of
the user's (`testbed.plugins`): a frozen dataclass whose fields are its options.

    @register("my_policy")
    @dataclass(frozen=True)
    class MyPolicy(Policy):
        root: str | None = None

        def plan(self, view: View) -> Plan: ...
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from itertools import pairwise
from math import inf
from typing import Any, ClassVar, TypeVar

from testbed.errors import BAD_INPUT, DetailedError
from testbed.plan import Group, Plan, Route, Tree
from testbed.planning.cost import choose_chunk
from testbed.planning.view import View


class PolicyError(DetailedError, ValueError):
    """A policy does not exist, does not take an option, or has no plan for a view."""

    exit_code = BAD_INPUT


class Policy(ABC):
    """A pure function from a view of the network to a plan. Subclasses are frozen dataclasses; fields are options.

    Equal policies make equal plans of equal views, so a run's decisions can be replayed from its stored views.
    """

    #: The name in the registry; set by `register`.
    name: ClassVar[str]
    #: False for a policy that needs more than a view and therefore cannot be chosen by its name alone.
    plans_alone: ClassVar[bool] = True

    @abstractmethod
    def plan(self, view: View) -> Plan:
        """Return the plan for `view`, with epoch 0: the controller that adopts the plan numbers it.

        Raises:
            PolicyError: The policy has no plan for this view.
        """

    def replan(self, view: View, last: Plan) -> Plan:
        """Return the plan for `view` while plan `last` is in force.

        The default ignores `last`. Override it where a search that begins from the plan in force takes less time.
        """
        return self.plan(view)

    def proposals(self, view: View, last: Plan) -> list[Plan]:
        """Return the plans for `view` that the controller is to judge against plan `last`, the best guess first."""
        return [self.replan(view, last)]

    def check(self, view: View) -> None:  # noqa: B027 - most policies can plan for any view
        """Raise PolicyError if a quick look shows that this policy has no plan for `view`."""

    @property
    def measure(self) -> Callable[[View, Plan], float] | None:
        """The policy's own cost of a plan under a view, by which the controller then judges swaps.

        None where that cost is the predicted seconds of a round.
        """
        return None

    @property
    def makes_groups(self) -> bool:
        """True if its plans may have rounds inside groups."""
        return False

    def explain(self, view: View, plan: Plan) -> dict[str, Any]:
        """Return the figures behind `plan`, as plain values for JSON; empty where the plan needs no explanation."""
        return {}

    def _plan(
        self,
        view: View,
        trees: Iterable[Tree],
        auxiliary: tuple[Route, ...] = (),
        groups: tuple[Group, ...] = (),
        period: int = 1,
    ) -> Plan:
        """Return the plan of these trees, with the chunk size that suits them.

        Args:
            view: The network.
            trees: The trees over all members; their shares add up to 1.
            auxiliary: Routes beside the trees' edges.
            groups: Members that reduce among themselves in all rounds but the global ones.
            period: Every `period`-th round is a global one.

        Raises:
            PolicyError: A tree uses an edge that the view lacks.
        """
        trees = tuple(trees)
        check_edges(self.name, view, Group(view.names, trees))
        chunk = choose_chunk(view, trees)
        return Plan(0, view.names, trees, chunk, self.name, auxiliary=auxiliary, groups=groups, period=period)


def check_edges(policy: str, view: View, group: Group) -> None:
    """Raise PolicyError unless the view has every edge that the group's trees use."""
    for source, target, _ in group.edges():
        _check_edge(policy, view, source, target)


def _check_edge(policy: str, view: View, source: str, target: str) -> None:
    if (source, target) not in view.edges:
        text = f"{policy}: the plan needs an edge from {source} to {target}, and the view has none"
        raise PolicyError(text, rule="no-edge", link=f"{source}->{target}")


def check_plan(policy: Policy, view: View, plan: object) -> None:
    """Raise PolicyError unless `plan` is a plan of the view's members over the view's edges.

    A policy that builds its plan without `_plan`, such as a user's, may return anything.
    """
    if not isinstance(plan, Plan):
        text = f"{policy.name}: `plan` returned a {type(plan).__name__}; return a testbed.plan.Plan"
        raise PolicyError(text, rule="not-a-plan")
    if odd := sorted(map(str, set(plan.members) ^ set(view.names))):
        names = ", ".join(odd)
        text = f"{policy.name}: {names} must be in both the plan and the view; plan for the view's members alone"
        raise PolicyError(text, field="members", given=tuple(odd))
    for group in (plan.whole, *plan.groups):
        check_edges(policy.name, view, group)
    for route in plan.auxiliary:
        for source, target in pairwise((route.source, *route.via, route.target)):
            _check_edge(policy.name, view, source, target)


def check_whole(policy: Policy, option: str, value: object, least: int) -> None:
    """Raise PolicyError unless the option's value is a whole number of at least `least`."""
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise _refused(policy, option, value, f"a whole number, at least {least}")


def check_number(policy: Policy, option: str, value: object, above: bool = False) -> None:
    """Raise PolicyError unless the option's value is a finite number of at least 0, or `above` 0."""
    if not is_number(value) or (above and value == 0):
        raise _refused(policy, option, value, "a number above 0" if above else "a number, at least 0")


def is_number(value: object) -> bool:
    """Return whether an option's value is a finite number of at least 0, and not true or false."""
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < inf


def check_switch(policy: Policy, option: str, value: object) -> None:
    """Raise PolicyError unless the option's value is true or false."""
    if not isinstance(value, bool):
        raise _refused(policy, option, value, "true or false")


def check_choice(policy: Policy, option: str, value: object, choices: Iterable[str]) -> None:
    """Raise PolicyError unless the option's value is one of `choices`."""
    choices = tuple(choices)
    if value not in choices:
        raise _refused(policy, option, value, f"one of {', '.join(choices)}")


def check_member(policy: Policy, option: str, value: str, view: View) -> None:
    """Raise PolicyError unless the option's value names a member of the view."""
    if value not in view.names:
        raise _refused(policy, option, value, f"a member, one of {', '.join(view.names)}")


def _refused(policy: Policy, option: str, value: object, must_be: str) -> PolicyError:
    return PolicyError(f"{policy.name}: {option} {value!r} must be {must_be}", field=option, given=value)


#: Every policy by name, plug-ins among them once they are loaded.
REGISTRY: dict[str, type[Policy]] = {}

P = TypeVar("P", bound=type[Policy])


def register(name: str) -> Callable[[P], P]:
    """Return a class decorator that enters a policy into the registry under `name`."""

    def enter(cls: P) -> P:
        cls.name = name
        REGISTRY[name] = cls
        return cls

    return enter


def is_own(policy: Policy | type[Policy]) -> bool:
    """Return whether a policy is one of the project's, and not a plug-in."""
    return (policy if isinstance(policy, type) else type(policy)).__module__.startswith("testbed.")


def named_policies() -> dict[str, type[Policy]]:
    """Return the policies that plan by a view alone by name, in alphabetical order."""
    return {name: cls for name, cls in sorted(REGISTRY.items()) if cls.plans_alone}


def policy_names() -> tuple[str, ...]:
    """Return the names of the policies that plan by a view alone, in alphabetical order."""
    return tuple(named_policies())


def make_policy(name: str, options: Mapping[str, Any] | None = None) -> Policy:
    """Return the policy of a name in the registry, with `options`.

    Raises:
        PolicyError: The registry has no such policy, or the policy has no such option; the text lists the known ones.
    """
    cls = REGISTRY.get(name)
    if cls is None:
        raise PolicyError(f"no policy {name!r}; there are: {', '.join(policy_names())}", field="policy", given=name)
    known = {f.name for f in fields(cls)}  # type: ignore[arg-type]
    if unknown := sorted(set(options or {}) - known):
        text = f"policy {name}: no option {', '.join(unknown)}; it takes: {', '.join(sorted(known)) or 'none'}"
        raise PolicyError(text, rule="unknown-option", given=tuple(unknown))
    return cls(**(options or {}))
