"""A scheme as the registry knows it: its options, and what it can do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from importlib import import_module
from types import ModuleType
from typing import Any, Literal

from testbed.plan import SchemeTraits
from testbed.schemes.assignment import Assignment, Setting
from testbed.schemes.options import Options, read

#: The numbers of local steps in a round that the controller may choose. From one number to the next, lost progress and
#: saved rounds grow about alike.
STEPS = (2, 4, 8, 16, 32, 64, 128)

#: The same for schemes that send so little of a change that they need long rounds.
LONG = (8, 16, 32, 64)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheme:
    """A way for members to train together.

    The module that declares it has a function `build(options, training)`, and `assign(options, setting)` if members
    need more than the options.
    """

    #: The name in files (`sync.strategy`) and on command lines.
    name: str
    #: The dataclass of its options.
    options: type[Options]
    #: Whether members reduce in rounds, by a plan's trees, or gossip, each at its own pace.
    exchange: Literal["all-reduce", "gossip"]
    #: Whether a policy plans which members exchange.
    planned: bool
    #: Whether members wait for each other's updates, so that the iterations between them are bounded.
    synchronous: bool = True
    #: Whether members can be lost and come back between any two steps, or iterations.
    elastic: bool = False
    #: Whether the other members go on when one has died.
    survives: bool = False
    #: Whether all members end with the same parameters.
    alike: bool = True
    #: Whether plans choose how its members train, live. Its `rounds` count steps.
    conducted: bool = False
    #: The knowledge of the scheme before a run, if plans may choose it live; None if they never do.
    traits: SchemeTraits | None = None
    #: The codec of plans where a file names none.
    codec: str = "fp32"
    #: The optimizer of local steps if it is part of the scheme, or the optimizers that it works with; empty for any.
    inner: str | tuple[str, ...] = ""
    #: Where the scheme was published.
    source: str
    #: The module that declares the scheme; set by the registry.
    module: str = ""

    @property
    def fields(self) -> tuple[str, ...]:
        """The names of the scheme's options."""
        return tuple(its.name for its in fields(self.options))

    def read(self, options: Mapping[str, Any]) -> Options:
        """Make the scheme's options from plain values. Raises ValueError where the scheme does not have them."""
        try:
            return read(self.options, options)
        except TypeError as error:
            raise ValueError(f"the scheme {self.name} does not take these options: {error}") from error

    @property
    def regraphs(self) -> bool:
        """True if its members can change to another graph during a run.

        They survive losses and have an option `graph`.
        """
        return self.survives and "graph" in self.fields

    @property
    def algorithm(self) -> ModuleType:
        """The module that declares the scheme, whose `build` makes the strategy, or the participant, of one member."""
        return import_module(self.module)

    @property
    def assigns(self) -> bool:
        """True if the scheme tells its members anything beside its options."""
        return hasattr(self.algorithm, "assign")

    def assign(self, options: Options, setting: Setting) -> Assignment:
        """Return the values that members need beside the options.

        Raises:
            GraphError, PolicyError, Misfit: The members and the network do not fit the scheme.
        """
        assigned: Assignment = self.algorithm.assign(options, setting) if self.assigns else Assignment()
        return assigned
