"""Events of an experiment: a link changes, goes down or up, the network is swapped, a worker is killed."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Annotated, Self

from pydantic import BeforeValidator, Field, WithJsonSchema, model_validator

from testbed.link import LinkState, NoSuchLink, find_link, link_ends, written_link
from testbed.schemes.options import GraphKind
from testbed.spec.model import LINK_SCHEMA, Strict
from testbed.spec.units import Delay, Duration, Loss, Rate

#: A link's name: `paris->tokyo`, also where the file has `paris-tokyo` or [paris, tokyo].
LinkName = Annotated[str, BeforeValidator(written_link), WithJsonSchema(LINK_SCHEMA)]


class LinkChange(Strict):
    """New values for a directed link. A value that is left out stays; null takes back what earlier changes set."""

    link: LinkName
    """The link, `paris->tokyo`."""
    rate: Rate | None = None
    """The link's rate."""
    delay: Delay | None = None
    """The link's delay, one way."""
    jitter: Delay | None = None
    """The link's jitter."""
    loss: Loss | None = None
    """The share of packets that the link loses at random."""

    def values(self) -> dict[str, float | None]:
        """Return the values by their names in a link's state; None for each that is not given."""
        return {"rate_bps": self.rate, "delay_s": self.delay, "jitter_s": self.jitter, "loss": self.loss}

    def after(self, earlier: LinkChange) -> LinkChange:
        """Return the earlier change and this one in one: this one's values count where both give them."""
        return earlier.model_copy(update={name: getattr(self, name) for name in self.model_fields_set})

    def scaled(self, factor: float) -> LinkChange:
        """Return the change with its rate multiplied, as an experiment's scale does."""
        return self if self.rate is None else self.model_copy(update={"rate": self.rate * factor})

    def over(self, state: LinkState) -> LinkState:
        """Return the state with the values of this change. A rate also replaces single opportunities to send."""
        state = state if self.loss is None else state.losing(self.loss)
        return replace(
            state if self.rate is None else replace(state, rate_bps=self.rate, delivery=None),
            delay_s=state.delay_s if self.delay is None else self.delay,
            jitter_s=state.jitter_s if self.jitter is None else self.jitter,
        )


class Event(Strict):
    """One thing that happens during training, at a time or after a round."""

    at: Duration | None = None
    """The time of the event, since training began."""
    round: int | None = Field(default=None, ge=1)
    """The round after which the event happens, instead of a time."""
    change: LinkChange | None = None
    """Give a directed link new values."""
    down: LinkName | None = None
    """Take a physical pair of links down; either of the two links names it."""
    up: LinkName | None = None
    """Take a physical pair of links up again."""
    swap: str | None = Field(default=None, min_length=1)
    """Replace the network by that of another topology file."""
    kill: str | None = None
    """Kill a worker's container, where the run is elastic or its strategy goes on without the worker."""
    graph: GraphKind | None = None
    """Change the communication graph of members that gossip, see docs/schemes.md."""

    @property
    def pair(self) -> tuple[str, str]:
        """The two sites of the pair that goes down or up."""
        return link_ends(self.down or self.up or "")

    @model_validator(mode="after")
    def _one_moment_one_thing(self) -> Self:
        if (self.at is None) == (self.round is None):
            raise ValueError("the event needs one moment | either `at: 30s` or `round: 40`")
        things = [name for name in ("change", "down", "up", "swap", "kill", "graph") if getattr(self, name) is not None]
        if len(things) != 1:
            done = " and ".join(things) or "nothing"
            raise ValueError(f"the event does {done} | one of change, down, up, swap, kill, graph")
        return self

    def named(self, known: Collection[str]) -> Event:
        """Return the event with its link named as in `known`; unchanged where it means none of these links."""
        try:
            if self.change is not None:
                link = find_link(self.change.link, known)
                return self.model_copy(update={"change": self.change.model_copy(update={"link": link})})
            pairs = {kind: find_link(pair, known) for kind in ("down", "up") if (pair := getattr(self, kind))}
            return self.model_copy(update=pairs)
        except NoSuchLink:
            return self
