"""What `sync` takes when members train without a centre: a communication graph, and the rules of the protocol."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from testbed.spec.load import Strict, misfit

Decentralized = Literal["hop", "dpsgd", "adpsgd", "prague", "netmax", "sgp", "fedasync", "staggered"]

DECENTRALIZED: frozenset[str] = frozenset(Decentralized.__args__)  # type: ignore[attr-defined]

#: The families of graphs that are made of any workers.
GraphKind = Literal["ring", "ring-based", "double-ring", "exponential", "torus", "complete"]

#: Whose members go on without one that has died, and over another graph.
SURVIVING = ("hop", "dpsgd")

#: Whose members stand in a communication graph. Prague's groups are drawn among all, FedAsync has a server, and who
#: exchanges with whom between staggered groups is planned.
_IN_GRAPH = DECENTRALIZED - {"prague", "fedasync", "staggered"}

#: The fields that belong to some strategies only.
DECENTRALIZED_FIELDS: dict[str, frozenset[str]] = {
    "graph": _IN_GRAPH,
    "degree": _IN_GRAPH,
    "weights": frozenset(("hop", "dpsgd")),
    "form": frozenset(("hop", "dpsgd")),
    "mode": frozenset(("hop",)),
    "backup": frozenset(("hop",)),
    "max_ig": frozenset(("hop",)),
    "staleness": frozenset(("hop", "staggered")),
    "skip": frozenset(("hop",)),
    "between": frozenset(("hop",)),
    "group": frozenset(("prague",)),
}


class Skip(Strict):
    """A member that lags leaps at most `jump` iterations at once.

    How far it lags is told by its out-neighbours' leads: their minimum, or, by a number, the lead that this part of
    them may fall short of (0.75: three quarters).
    """

    jump: int = Field(ge=2, le=1000)
    rule: Literal["min"] | float = "min"

    @model_validator(mode="after")
    def _a_quantile(self) -> Self:
        if self.rule != "min" and not 0 < self.rule <= 1:
            raise misfit("rule", f"is {self.rule}", "min, or a number above 0 and up to 1, such as 0.75")
        return self

    @property
    def quantile(self) -> float:
        """The rule as a quantile; the minimum is 0."""
        return 0.0 if isinstance(self.rule, str) else self.rule


class DecentralizedSync(Strict):
    """The part of `sync` for training without a centre (docs/decentralized.md).

    `between: sites` has the first worker of each site stand in the graph, and reduce its site's steps.
    """

    graph: Literal[GraphKind, "network"] = "ring"
    degree: int = Field(default=3, ge=2)
    weights: Literal["uniform", "metropolis"] | None = None
    form: Literal["serial", "parallel"] = "serial"
    mode: Literal["standard", "notify_ack"] = "standard"
    backup: int = Field(default=0, ge=0)
    max_ig: int | None = Field(default=None, ge=1, le=10_000)
    staleness: int = Field(default=0, ge=0, le=10_000)
    skip: Skip | None = None
    between: Literal["workers", "sites"] = "workers"
    group: int = Field(default=3, ge=2)

    @model_validator(mode="after")
    def _rules_agree(self) -> Self:
        """As HopRules has it, in the words of the file."""
        if "degree" in self.model_fields_set and self.graph != "network":
            raise misfit("degree", f"the graph {self.graph} has degrees of its own", "`graph: network`")
        if self.between == "sites" and self.graph == "network":
            raise misfit("between", "the network's fast pairs are those of workers", "`between: workers`")
        if self.backup and self.staleness:
            raise misfit("staleness", "backup says what a member does not wait for already", "one of the two")
        if self.mode == "notify_ack" and (self.backup or self.staleness or self.max_ig is not None):
            raise misfit("mode", "notify_ack holds members back by itself", "no max_ig, backup or staleness with it")
        if self.backup and self.max_ig is None:
            raise misfit("backup", "nothing would bound what comes to a slow member", "`max_ig: 4` with it")
        if self.skip and not (self.max_ig and (self.backup or self.staleness)):
            rule = "without tokens nobody knows that it lags, and without backup or staleness nobody lags by two"
            raise misfit("skip", rule, "`max_ig: 4` and `backup: 1` (or `staleness: 1`) with it")
        return self
