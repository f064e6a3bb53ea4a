"""Events of an experiment: a link changes, goes down or up, the network is swapped, a worker is killed."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Annotated, Self

from pydantic import BeforeValidator, Field, WithJsonSchema, model_validator

from testbed.link import LinkState, NoSuchLink, find_link, link_ends, written_link
from testbed.schemes.options import GraphKind
from testbed.spec.model import LINK_SCHEMA, Strict, misfit
from testbed.spec.units import Delay, Duration, Loss, Rate

#: A link's name: `paris->tokyo`, also where the file has `paris-tokyo` or [paris, tokyo].
LinkName = Annotated[str, BeforeValidator(written_link), WithJsonSchema(LINK_SCHEMA)]


class LinkChange(Strict):
    """New values for a directed link. Omitted values stay; null undoes the value that earlier changes set."""

    link: LinkName
    """The link, `paris->tokyo`."""
    rate: Rate | None = None
    """The link's rate, such as `8mbit`, before the experiment's `scale`."""
    delay: Delay | None = None
    """The link's one-way delay, such as `50ms`."""
    jitter: Delay | None = None
    """The link's jitter, such as `2ms`."""
    loss: Loss | None = None
    """The share of packets that the link loses at random, such as `0.1%`."""

    def values(self) -> dict[str, float | None]:
        """Return the values by their names in a link's state; None for each that is not given."""
        return {"rate_bps": self.rate, "delay_s": self.delay, "jitter_s": self.jitter, "loss": self.loss}

    def after(self, earlier: LinkChange) -> LinkChange:
        """Return the `earlier` change combined with this one, whose values win where both give one."""
        return earlier.model_copy(update={name: getattr(self, name) for name in self.model_fields_set})

    def scaled(self, factor: float) -> LinkChange:
        """Return the change with its rate multiplied by `factor`, an experiment's scale."""
        return self if self.rate is None else self.model_copy(update={"rate": self.rate * factor})

    def over(self, state: LinkState) -> LinkState:
        """Return the state with the values of this change. A rate also ends the replay of a packet-delivery trace."""
        state = state if self.loss is None else state.losing(self.loss)
        return replace(
            state if self.rate is None else replace(state, rate_bps=self.rate, delivery=None),
            delay_s=state.delay_s if self.delay is None else self.delay,
            jitter_s=state.jitter_s if self.jitter is None else self.jitter,
        )


class Event(Strict):
    """One action during training, at a time or after a round."""

    at: Duration | None = None
    """The time of the event since training began, such as `30s`."""
    round: int | None = Field(default=None, ge=1)
    """The number of the round after which the event happens, instead of `at`."""
    change: LinkChange | None = None
    """Give a directed link new values."""
    down: LinkName | None = None
    """Take a physical pair of links down, named by either link: `paris->tokyo`."""
    up: LinkName | None = None
    """Bring a physical pair of links up again, named by either link."""
    swap: str | None = Field(default=None, min_length=1)
    """Replace the network by another one, named as in `topology`."""
    kill: str | None = None
    """Kill a worker's container, named by the worker; needs `elastic`, or a strategy that survives a lost worker."""
    graph: GraphKind | None = None
    """Change the communication graph of members that gossip; see docs/schemes.md."""

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
        if self.change is not None and self.change.model_fields_set == {"link"}:
            raise misfit("change", "the change has no value", "`rate: 8mbit`, or a delay, jitter or loss")
        return self

    def named(self, known: Collection[str]) -> Event:
        """Return the event with its link named as in `known`; unchanged where no known link is meant."""
        if self.change is not None:
            link = named_link(self.change.link, known)
            return self.model_copy(update={"change": self.change.model_copy(update={"link": link})})
        pairs = {kind: named_link(pair, known) for kind in ("down", "up") if (pair := getattr(self, kind))}
        return self.model_copy(update=pairs)


def named_link(name: str, known: Collection[str]) -> str:
    """Return the name as in `known`; unchanged where no known link is meant."""
    try:
        return find_link(name, known)
    except NoSuchLink:
        return name
