"""Hop: decentralized training whose members are held together by tokens, and need not wait for their slowest
neighbours."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from testbed.schemes.options import Checked, InGraph, Misfit, limited
from testbed.schemes.scheme import Scheme


@dataclass(frozen=True)
class Skip(Checked):
    """A member that lags leaps at most `jump` iterations at once.

    How far it lags is told by its out-neighbours' leads: their minimum, or, by a number, the lead that this part of
    them may fall short of (0.75: three quarters).
    """

    jump: int = limited(ge=2, le=1000)
    rule: Literal["min"] | float = "min"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.rule != "min" and not 0 < self.rule <= 1:
            raise Misfit("rule", f"is {self.rule}", "min, or a number above 0 and up to 1, such as 0.75")

    @property
    def quantile(self) -> float:
        """The rule as a quantile; the minimum is 0."""
        return 0.0 if isinstance(self.rule, str) else self.rule


@dataclass(frozen=True)
class HopOptions(InGraph):
    """Hop's rules. With `between: sites` the first worker of each site stands in the graph, for all of its site."""

    weights: Literal["uniform", "metropolis"] | None = None
    form: Literal["serial", "parallel"] = "serial"
    mode: Literal["standard", "notify_ack"] = "standard"
    backup: int = limited(0, ge=0)
    max_ig: int | None = limited(None, ge=1, le=10_000)
    staleness: int = limited(0, ge=0, le=10_000)
    skip: Skip | None = None
    between: Literal["workers", "sites"] = "workers"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.between == "sites" and self.graph == "network":
            raise Misfit("between", "the network's fast pairs are those of workers", "`between: workers`")
        if self.backup and self.staleness:
            raise Misfit("staleness", "backup says what a member does not wait for already", "one of the two")
        if self.mode == "notify_ack" and (self.backup or self.staleness or self.max_ig is not None):
            raise Misfit("mode", "notify_ack holds members back by itself", "no max_ig, backup or staleness with it")
        if self.backup and self.max_ig is None:
            raise Misfit("backup", "nothing would bound what comes to a slow member", "`max_ig: 4` with it")
        if self.skip and not (self.max_ig and (self.backup or self.staleness)):
            rule = "without tokens nobody knows that it lags, and without backup or staleness nobody lags by two"
            raise Misfit("skip", rule, "`max_ig: 4` and `backup: 1` (or `staleness: 1`) with it")

    @property
    def gap(self) -> Mapping[str, Any]:
        return {
            "max_ig": self.max_ig,
            "backup": self.backup,
            "staleness": self.staleness,
            "notify_ack": self.mode == "notify_ack",
        }

    def check_graph(self, fewest: int) -> None:
        if self.backup > fewest:
            rule = f"{self.backup}, where some member has {fewest} in-neighbours"
            raise Misfit("backup", rule, f"{fewest} at most")

    def check_elastic(self) -> None:
        if self.between == "sites":
            raise Misfit("between", "a worker that stands for its site can't be made up for", "`between: workers`")


SCHEME = Scheme(
    name="hop",
    options=HopOptions,
    exchange="gossip",
    planned=False,
    elastic=True,
    survives=True,
    alike=False,
    source="Luo et al. 2019, arXiv 1902.01064",
)
