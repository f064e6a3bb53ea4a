"""What a scheme is to all that do not run it: its options, and what it can do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal

from testbed.schemes.options import Options, read

if TYPE_CHECKING:
    from testbed.schemes.assignment import Assignment, Setting


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheme:
    """How members train together, under the `name` that a file has it by.

    options     the dataclass of what it takes
    exchange    members reduce in rounds among all, by trees; or each goes at its own pace, and they gossip
    planned     whether a policy plans which members exchange
    synchronous whether members wait for each other's updates, so that how far they get apart is bounded
    elastic     whether members can be lost and come back between any two steps, or iterations
    survives    whether the others go on without one that has died
    alike       whether all members end with the same parameters
    conducted   whether plans say how its members train, live; its `rounds` count steps
    codec       what plans name where a file names none
    inner       the optimizer of local steps, where it is part of the scheme
    source      where it was published
    module      the module of a plug-in, which has its `build`; empty for the project's own
    """

    name: str
    options: type[Options]
    exchange: Literal["all-reduce", "gossip"]
    planned: bool
    synchronous: bool = True
    elastic: bool = False
    survives: bool = False
    alike: bool = True
    conducted: bool = False
    codec: str = "fp32"
    inner: str = ""
    source: str
    module: str = ""

    @property
    def fields(self) -> tuple[str, ...]:
        """The names of its options."""
        return tuple(its.name for its in fields(self.options))

    def read(self, options: Mapping[str, Any]) -> Options:
        """Its options as plain values have them. ValueError when they are none of it."""
        try:
            return read(self.options, options)
        except TypeError as error:
            raise ValueError(f"no options of {self.name}: {error}") from error

    @property
    def regraphs(self) -> bool:
        """Whether its members go over to another graph: they survive it, and have a choice."""
        return self.survives and "graph" in self.fields

    @property
    def assigns(self) -> bool:
        """Whether it tells its members anything beside the options."""
        return not self.module and find_spec(f"testbed.schemes.{self.name}.assignment") is not None

    def assign(self, options: Options, setting: Setting) -> Assignment:
        """What members are told: the folder's `assignment` says so, where there is one; else nothing.

        GraphError, PolicyError or Misfit where the members and the network are not for it.
        """
        from testbed.schemes.assignment import Assignment

        name = f"testbed.schemes.{self.name}.assignment"
        assigned: Assignment = import_module(name).assign(options, setting) if self.assigns else Assignment()
        return assigned

    @property
    def algorithm(self) -> ModuleType:
        """The module that runs it, which loads PyTorch."""
        return import_module(self.module or f"testbed.schemes.{self.name}.algorithm")
