"""What a policy is, and the registry of those there are: one a file, each importing this."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from typing import Any, ClassVar, TypeVar

from testbed.plan import Plan, Tree
from testbed.planning.chunk import choose_chunk
from testbed.planning.view import View


class PolicyError(ValueError):
    """A policy that does not exist, options it does not take, or a view it has no plan for."""


class Policy(ABC):
    """A pure function from a view to a plan. Subclasses are frozen dataclasses whose fields are the options."""

    name: ClassVar[str]

    @abstractmethod
    def plan(self, view: View) -> Plan:
        """The plan for `view`, with epoch 0: whoever adopts it numbers it. PolicyError when there is none."""

    def _plan(self, view: View, trees: Iterable[Tree]) -> Plan:
        trees = tuple(trees)
        return Plan(0, view.names, trees, choose_chunk(view, trees), self.name)


REGISTRY: dict[str, type[Policy]] = {}

P = TypeVar("P", bound=type[Policy])


def register(name: str) -> Callable[[P], P]:
    """Class decorator: the policy is known by `name`."""

    def enter(cls: P) -> P:
        cls.name = name
        REGISTRY[name] = cls
        return cls

    return enter


def policy_names() -> tuple[str, ...]:
    """The policies there are, in alphabetical order."""
    return tuple(sorted(REGISTRY))


def make_policy(name: str, options: Mapping[str, Any] | None = None) -> Policy:
    """The policy `name` with `options`; PolicyError that lists what is known when either is not."""
    cls = REGISTRY.get(name)
    if cls is None:
        raise PolicyError(f"no policy {name!r}; there are: {', '.join(policy_names())}")
    known = {f.name for f in fields(cls)}  # type: ignore[arg-type]
    if unknown := sorted(set(options or {}) - known):
        raise PolicyError(
            f"policy {name}: no option {', '.join(unknown)}; it takes: {', '.join(sorted(known)) or 'none'}"
        )
    return cls(**(options or {}))
