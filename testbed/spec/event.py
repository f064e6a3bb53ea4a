"""What happens while an experiment runs: a link's values, a link down or up, another network, a worker's end."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Annotated, Self

from pydantic import BeforeValidator, Field, WithJsonSchema, model_validator

from testbed.link import LinkState, NoSuchLink, find_link, link_ends, written_link
from testbed.schemes.options import GraphKind
from testbed.spec.load import Strict
from testbed.spec.units import Delay, Duration, Loss, Rate

#: A link's name: `paris->tokyo`, also where the file has `paris-tokyo` or [paris, tokyo].
LinkName = Annotated[
    str,
    BeforeValidator(written_link),
    WithJsonSchema(
        {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}, "minItems": 2, "maxItems": 2}]}
    ),
]


class LinkChange(Strict):
    """New values for a directed link; what is left out stays, and null is as the link's file or trace has it again."""

    link: LinkName
    rate: Rate | None = None
    delay: Delay | None = None
    jitter: Delay | None = None
    loss: Loss | None = None

    def values(self) -> dict[str, float | None]:
        """Return the values by the names that a link's state has for them; None for each that is not given."""
        return {"rate_bps": self.rate, "delay_s": self.delay, "jitter_s": self.jitter, "loss": self.loss}

    def after(self, earlier: LinkChange) -> LinkChange:
        """Both in one: what is left out here is as it was changed before."""
        return earlier.model_copy(update={name: getattr(self, name) for name in self.model_fields_set})

    def scaled(self, factor: float) -> LinkChange:
        """The same change with its rate multiplied, as an experiment's scale does."""
        return self if self.rate is None else self.model_copy(update={"rate": self.rate * factor})

    def over(self, state: LinkState) -> LinkState:
        """The state with the values given here. A rate takes the place of single opportunities too."""
        state = state if self.loss is None else state.losing(self.loss)
        return replace(
            state if self.rate is None else replace(state, rate_bps=self.rate, delivery=None),
            delay_s=state.delay_s if self.delay is None else self.delay,
            jitter_s=state.jitter_s if self.jitter is None else self.jitter,
        )


class Event(Strict):
    """Something that happens, at a time after training began or when a round is complete: exactly one thing.

    `change` a directed link's values; take a physical pair `down` or `up`, which either of its two links names;
    `swap` the network for that of another topology file; `kill` a worker's container, where the run is elastic or its
    strategy goes on without it; go over to another communication `graph` (docs/schemes.md).
    """

    at: Duration | None = None
    round: int | None = Field(default=None, ge=1)
    change: LinkChange | None = None
    down: LinkName | None = None
    up: LinkName | None = None
    swap: str | None = Field(default=None, min_length=1)
    kill: str | None = None
    graph: GraphKind | None = None

    @property
    def pair(self) -> tuple[str, str]:
        """The two sites of the pair that it takes down or up."""
        return link_ends(self.down or self.up or "")

    @model_validator(mode="after")
    def _one_moment_one_thing(self) -> Self:
        if (self.at is None) == (self.round is None):
            raise ValueError("needs one moment | either `at: 30s` or `round: 40`")
        things = [name for name in ("change", "down", "up", "swap", "kill", "graph") if getattr(self, name) is not None]
        if len(things) != 1:
            raise ValueError(f"does {' and '.join(things) or 'nothing'} | one of change, down, up, swap, kill, graph")
        return self

    def named(self, known: Collection[str]) -> Event:
        """Return the event with its link's name as it is among the `known` ones, where one of them is meant."""
        try:
            if self.change is not None:
                link = find_link(self.change.link, known)
                return self.model_copy(update={"change": self.change.model_copy(update={"link": link})})
            pairs = {kind: find_link(pair, known) for kind in ("down", "up") if (pair := getattr(self, kind))}
            return self.model_copy(update=pairs)
        except NoSuchLink:
            return self
