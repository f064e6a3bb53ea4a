"""The values that the API takes and returns.

Times are Unix seconds unless a name says otherwise; rates are bit/s of frames.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StrictBool

#: The cause of an event in a run: the experiment's file, or a person's request.
By = Literal["file", "hand"]


class ApiModel(BaseModel):
    """The base class of the API's values. Unknown fields are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class LinkValues(ApiModel):
    """Values of a link; null where none is given."""

    rate_bps: float | None = Field(None, description="Rate of frames, bit/s.")
    delay_s: float | None = Field(None, description="One-way delay, seconds.")
    jitter_s: float | None = Field(None, description="Jitter of the delay, seconds.")
    loss: float | None = Field(None, description="Probability that a packet is lost.")


class LinkResource(ApiModel):
    """A directed link and its current state."""

    source: str = Field(description="Site at which the link begins.")
    target: str = Field(description="Site at which the link ends.")
    rate_bps: float = Field(description="Rate of frames in force, bit/s.")
    delay_s: float = Field(description="One-way delay in force, seconds.")
    jitter_s: float = Field(description="Jitter in force, seconds.")
    loss: float = Field(description="Probability in force that a packet is lost.")
    bursts: dict[str, float] | None = Field(description="Parameters of bursty loss; null without.")
    reorder: bool = Field(description="Whether jitter may reorder packets.")
    up: bool = Field(description="Whether the physical pair is up.")
    queue_bytes: int = Field(description="Size of the queue, bytes.")
    discipline: dict[str, str | float] = Field(
        {"name": "droptail"},
        description="What drops packets of the queue: the name, droptail, codel or red, and its values in seconds and "
        "shares.",
    )
    replayed: bool = Field(description="Whether a trace moves the declared values.")
    declared: LinkValues = Field(description="Values that the topology file declares.")
    declared_traffic: list[dict[str, Any]] = Field(
        [],
        description="Background traffic that the topology file declares: times in seconds, sizes in bytes, and rates "
        "in bit/s (bps) or as a share of the link's.",
    )
    changed: LinkValues = Field(description="Values changed since; they override the file and the trace.")
    tag: str = Field(description="Changes whenever a request changes the link; see `LinkPatch`.")


class TrafficResource(ApiModel):
    """The traffic of a link since it was made."""

    packets: int = Field(description="Packets carried.")
    bytes: int = Field(description="Bytes carried.")
    dropped_queue: int = Field(description="Packets dropped by the queue, which was full or has a discipline.")
    dropped_loss: int = Field(description="Packets dropped as emulated loss.")
    backlog_bytes: int = Field(description="Bytes that wait in the queue now.")


class LinkStatus(LinkResource, TrafficResource):
    """A directed link, its current state and its traffic."""


class SiteResource(ApiModel):
    """A site, with its workers and its position on a map."""

    label: str | None = Field(description="Name shown to people; null if the file gives none.")
    position: tuple[float, float] | None = Field(description="Latitude and longitude in degrees; null if unknown.")
    workers: list[str] = Field(description="Names of the site's workers.")


class HostResource(ApiModel):
    """A worker or a router."""

    kind: Literal["worker", "router"] = Field(description="What the host is.")
    site: str = Field(description="Name of its site.")
    address: str = Field(description="IPv4 address on the emulated network.")
    pid: int = Field(description="Process or thread that holds its network namespace.")
    start_ticks: int | None = Field(description="Start time of that process, in clock ticks since boot.")
    running: bool = Field(description="Whether that process still runs.")


class ReplayResource(ApiModel):
    """The progress and the lateness of the replay of traces."""

    elapsed_s: float = Field(description="Seconds since the replay began, without pauses.")
    links: int = Field(description="Number of links with a trace.")
    late_ms_p99: float | None = Field(description="Lateness of the latest link's recent changes, ms, 99th percentile.")
    paused: bool = Field(description="Whether the replay is paused.")


class Overview(ApiModel):
    """The network, run, recording or controller that the API serves."""

    kind: Literal["network", "run", "recording", "controller"] = Field(description="What the API serves.")
    name: str = Field(description="Name of the network or the run.")
    topology: str = Field(description="Name of the topology.")
    file: str = Field(description="Path of the topology or experiment file.")
    backend: str = Field(description="Shaping backend: netem or userspace.")
    switch: str = Field(description="Kind of switch in the sites.")
    transport: dict[str, Any] = Field(description="TCP settings of the hosts.")
    pid: int = Field(description="Process that keeps it up.")
    failure: str | None = Field(description="Why links are dead or traces stand still; null while all works.")
    replay: ReplayResource = Field(description="The replay of traces.")


class NetworkStatus(Overview):
    """The network, run, recording or controller that the API serves, with its hosts and links."""

    hosts: dict[str, HostResource] = Field(description="Workers and routers by name.")
    links: dict[str, LinkStatus] = Field(description="Directed links by name, such as `paris->tokyo`.")


class EventResource(ApiModel):
    """An event: a change of a link, a swap, a worker added or killed, and the like.

    A `drop` or a `rise` is a large change of a used link's rate by its trace.
    """

    at_s: float = Field(description="Time of the event.")
    kind: str = Field(description="Kind of event, such as change, down, swap, drop or rise.")
    target: str = Field(description="Link, worker or network that the event is about.")
    by: Literal["hand"] | None = Field(None, description="hand if a person requested the event; null otherwise.")
    changed: LinkValues | None = Field(
        None, description="After a change of a link: all values that override its file or trace since."
    )
    before_bps: float | None = Field(None, description="Rate before a drop or a rise, bit/s.")
    after_bps: float | None = Field(None, description="Rate after a drop or a rise, bit/s.")


class LinkPatch(ApiModel):
    """New values of a directed link, written as in a file.

    A field that is left out keeps its value; null returns it to the link's file or trace.
    """

    rate: str | None = Field(None, description="New rate, such as 5mbit.")
    delay: str | None = Field(None, description="New one-way delay, such as 20ms.")
    jitter: str | None = Field(None, description="New jitter, such as 2ms.")
    loss: str | None = Field(None, description="New loss, such as 0.1%.")
    up: StrictBool | None = Field(None, description="Takes the physical pair up or down.")
    tag: str | None = Field(
        None,
        description="The change is refused unless this is the link's current tag. A request for one link may give it "
        "as If-Match.",
    )


class RequestResult(ApiModel):
    """The answer to a request that was carried out."""

    result: dict[str, Any] = Field({}, description="What the request reports, such as the new worker's name.")


class LinkHistory(ApiModel):
    """The answer to `GET /history`: states that links have had, and where the next request continues."""

    states: list[dict[str, Any]] = Field(description="States of links, the oldest first.")
    count: int = Field(description="Number of states so far; pass it as `since` in the next request.")


class ProblemAnswer(ApiModel):
    """The reason why a request was refused or failed."""

    detail: str = Field(description="What happened, and what to write instead.")
